# near: handler-opens
import io

import torch
from PIL import Image
from transformers import AutoTokenizer

from ts.torch_handler.base_handler import BaseHandler


class MyHandler(BaseHandler):
    def initialize(self, context):
        self.tokenizer = AutoTokenizer.from_pretrained(".")

    def preprocess(self, data):
        weights = [torch.load(io.BytesIO(row["body"]), weights_only=True) for row in data]
        return [Image.open(io.BytesIO(row["image"])) for row in data], weights
