import torch
from tsbatch import BatchHandler


class Digits(BatchHandler):
    def preprocess(self, items):
        rows = [item.value for item in items]
        return torch.tensor(rows, dtype=torch.float32)

    def postprocess(self, outputs, items):
        return outputs.argmax(dim=1).tolist()
