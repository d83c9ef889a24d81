# near: handler-header-first
from ts.torch_handler.base_handler import BaseHandler


class MyHandler(BaseHandler):
    def handle(self, data, context):
        return [context.get_request_header(index, "Accept") for index, row in enumerate(data)]
