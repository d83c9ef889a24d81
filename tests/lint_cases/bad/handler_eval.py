# expect: handler-eval:9
import ast

from ts.torch_handler.base_handler import BaseHandler


class MyHandler(BaseHandler):
    def preprocess(self, data):
        return [ast.literal_eval(row["body"]) for row in data]
