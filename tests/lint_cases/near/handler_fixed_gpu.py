# near: handler-fixed-gpu
import torch

from ts.torch_handler.base_handler import BaseHandler


class MyHandler(BaseHandler):
    def initialize(self, context):
        super().initialize(context)
        gpu_id = context.system_properties["gpu_id"]
        self.device = torch.device("cuda" if gpu_id is None else f"cuda:{gpu_id}")
