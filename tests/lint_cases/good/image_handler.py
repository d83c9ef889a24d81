import io

import torch
from PIL import Image
from torchvision import transforms
from ts.torch_handler.image_classifier import ImageClassifier


class DigitClassifier(ImageClassifier):
    image_processing = transforms.Compose([transforms.ToTensor(), transforms.Normalize((0.1307,), (0.3081,))])

    def preprocess(self, data):
        images = [Image.open(io.BytesIO(row.get("data") or row.get("body"))) for row in data]
        return torch.stack([self.image_processing(image) for image in images])

    def postprocess(self, data):
        return data.argmax(1).tolist()
