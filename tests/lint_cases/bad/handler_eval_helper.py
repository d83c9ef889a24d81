# expect: handler-eval:10
from ts.torch_handler.base_handler import BaseHandler


class MyHandler(BaseHandler):
    def preprocess(self, data):
        return [self.parse(row) for row in data]

    def parse(self, row):
        return eval(row["body"])
