# near: handler-exits
import sys

from ts.torch_handler.base_handler import BaseHandler


class MyHandler(BaseHandler):
    def initialize(self, context):
        if not context:
            sys.exit("no context")
        super().initialize(context)

    def preprocess(self, data):
        return [row.get("body") for row in data]
