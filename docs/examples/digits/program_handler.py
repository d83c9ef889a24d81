import torch
from tsbatch import BatchHandler


class Digits(BatchHandler):
    def preprocess(self, items):
        return torch.tensor([item.value for item in items], dtype=torch.float32)

    def postprocess(self, outputs, items):
        return outputs.argmax(dim=1).tolist()
