# expect: handler-no-handler-time:6
from ts.torch_handler.base_handler import BaseHandler


class MyHandler(BaseHandler):
    def handle(self, data, context):
        return [row["body"] for row in data]
