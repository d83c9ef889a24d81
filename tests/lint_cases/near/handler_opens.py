# near: handler-opens
import io

from PIL import Image
from transformers import AutoTokenizer

from ts.torch_handler.base_handler import BaseHandler


class MyHandler(BaseHandler):
    def initialize(self, context):
        self.tokenizer = AutoTokenizer.from_pretrained(".")

    def preprocess(self, data):
        return [Image.open(io.BytesIO(row["body"])) for row in data]
