# near: handler-module-handle
from ts.torch_handler.base_handler import BaseHandler


class MyHandler(BaseHandler):
    def preprocess(self, data):
        return [row["body"] for row in data]


def handle_row(row):
    return row
