# expect: handler-fixed-gpu:8
from ts.torch_handler.base_handler import BaseHandler


class MyHandler(BaseHandler):
    def initialize(self, context):
        super().initialize(context)
        self.model.cuda()
