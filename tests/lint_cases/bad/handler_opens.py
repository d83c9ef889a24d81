# expect: handler-opens:9
from transformers import AutoTokenizer

from ts.torch_handler.base_handler import BaseHandler


class MyHandler(BaseHandler):
    def preprocess(self, data):
        tokenizer = AutoTokenizer.from_pretrained(".")
        return tokenizer([row["body"] for row in data])
