# near: handler-logs-payload
import logging

logger = logging.getLogger(__name__)

from ts.torch_handler.base_handler import BaseHandler


class MyHandler(BaseHandler):
    def preprocess(self, data):
        logger.info("%d requests", len(data))
        batch = self.tokenizer([row["body"] for row in data])
        logger.debug("shape %s", batch.shape)
        return batch
