# near: handler-training-mode
import torch
from net import Net

from ts.torch_handler.base_handler import BaseHandler


class MyHandler(BaseHandler):
    def initialize(self, context):
        self.model = Net()
        self.model.load_state_dict(torch.load("model.pt", weights_only=True))
        self.model.eval()
        self.initialized = True
