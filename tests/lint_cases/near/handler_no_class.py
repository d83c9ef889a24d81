# near: handler-no-class
from ts.torch_handler.text_classifier import TextClassifier


class MyHandler(TextClassifier):
    pass
