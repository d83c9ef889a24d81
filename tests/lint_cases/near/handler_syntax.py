# near: handler-syntax
from ts.torch_handler.base_handler import BaseHandler


class MyHandler(BaseHandler):
    def preprocess(self, data):
        match = [row.get("body") for row in data]
        return match
