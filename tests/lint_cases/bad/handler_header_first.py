# expect: handler-header-first:7
from ts.torch_handler.base_handler import BaseHandler


class MyHandler(BaseHandler):
    def handle(self, data, context):
        kind = context.get_request_header(0, "Accept")
        return [kind for row in data]
