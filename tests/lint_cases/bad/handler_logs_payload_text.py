# expect: handler-logs-payload:14
import logging

logger = logging.getLogger(__name__)

from ts.torch_handler.base_handler import BaseHandler


class MyHandler(BaseHandler):
    def preprocess(self, data):
        texts = []
        for row in data:
            text = row["body"].decode()
            logger.info(f"Received text: {text}")
            texts.append(text)
        return texts
