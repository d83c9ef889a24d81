import torch
from net import Net
from tsbatch import BatchHandler


class Digits(BatchHandler):
    def load_model(self):
        return self.load_weights(Net(), "net.safetensors")

    def preprocess(self, items):
        return torch.tensor([item.value for item in items], dtype=torch.float32)

    def postprocess(self, outputs, items):
        return outputs.argmax(dim=1).tolist()
