# near: handler-root-logging
import logging

logging.basicConfig(level=logging.INFO)
logging.getLogger("transformers").setLevel(logging.ERROR)

from ts.torch_handler.base_handler import BaseHandler


class MyHandler(BaseHandler):
    pass
