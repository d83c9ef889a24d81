# expect: handler-falsy:7
from ts.torch_handler.base_handler import BaseHandler


class MyHandler(BaseHandler):
    def preprocess(self, data):
        return [row.get("data") or row.get("body") for row in data]
