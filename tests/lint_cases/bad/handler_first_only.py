# expect: handler-first-only:7
from ts.torch_handler.base_handler import BaseHandler


class MyHandler(BaseHandler):
    def preprocess(self, data):
        text = data[0].get("body")
        return self.tokenizer(text)
