# expect: handler-module-handle:13
from ts.torch_handler.base_handler import BaseHandler


class MyHandler(BaseHandler):
    def preprocess(self, data):
        return [row["body"] for row in data]


handler = MyHandler()


def handle(data, context):
    if data is None:
        return None
    return handler.handle(data, context)
