# near: handler-torch-load
import torch

from ts.torch_handler.base_handler import BaseHandler


class MyHandler(BaseHandler):
    def load_model(self):
        return torch.jit.load("model.pt"), torch.load("w.pt", weights_only=True)
