# expect: handler-first-only:7
from ts.torch_handler.base_handler import BaseHandler


class MyHandler(BaseHandler):
    def handle(self, data, context):
        body = data[0]["body"]
        return [self.model(body) for _ in range(len(data))]
