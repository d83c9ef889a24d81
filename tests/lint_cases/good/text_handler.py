import logging
from abc import ABC

import torch
from transformers import AutoModelForSequenceClassification, AutoTokenizer
from ts.torch_handler.base_handler import BaseHandler

logger = logging.getLogger(__name__)


class TextHandler(BaseHandler, ABC):
    def initialize(self, ctx):
        self.manifest = ctx.manifest
        properties = ctx.system_properties
        model_dir = properties.get("model_dir")
        has_gpu = torch.cuda.is_available() and properties.get("gpu_id") is not None
        self.device = torch.device(f"cuda:{properties.get('gpu_id')}" if has_gpu else "cpu")
        self.model = AutoModelForSequenceClassification.from_pretrained(model_dir)
        self.tokenizer = AutoTokenizer.from_pretrained(model_dir)
        self.model.to(self.device)
        self.model.eval()
        self.initialized = True

    def preprocess(self, requests):
        texts = []
        for row in requests:
            data = row.get("data")
            if data is None:
                data = row.get("body")
            texts.append(data.decode("utf-8") if isinstance(data, (bytes, bytearray)) else data)
        logger.info("%d texts", len(texts))
        return self.tokenizer(texts, padding=True, return_tensors="pt")

    def inference(self, inputs):
        return self.model(**inputs.to(self.device)).logits.argmax(1)

    def postprocess(self, outputs):
        return outputs.tolist()
