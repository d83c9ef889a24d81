# expect: handler-fixed-gpu:10
import torch

from ts.torch_handler.base_handler import BaseHandler


class MyHandler(BaseHandler):
    def initialize(self, context):
        super().initialize(context)
        self.device = torch.device("cuda")
