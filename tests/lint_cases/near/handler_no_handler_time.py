# near: handler-no-handler-time
from ts.torch_handler.base_handler import BaseHandler


class MyHandler(BaseHandler):
    def handle(self, data, context):
        return super().handle(data, context)
