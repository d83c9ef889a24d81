# near: handler-sleeps
import time

from ts.torch_handler.base_handler import BaseHandler


class MyHandler(BaseHandler):
    def initialize(self, context):
        time.sleep(0.1)
        super().initialize(context)
