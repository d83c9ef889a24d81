# expect: handler-torch-load:9
import torch

from ts.torch_handler.base_handler import BaseHandler


class MyHandler(BaseHandler):
    def load_model(self):
        return torch.load("model.pt").eval()
