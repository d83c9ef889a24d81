# near: handler-pickle
import json

import torch

from ts.torch_handler.base_handler import BaseHandler


class MyHandler(BaseHandler):
    def load_model(self):
        json.loads("{}")
        return torch.load("model.pt", weights_only=True)
