# expect: handler-no-class:1
from ts.torch_handler.text_classifier import TextClassifier
