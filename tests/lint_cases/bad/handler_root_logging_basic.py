# expect: handler-root-logging:4
import logging

logging.basicConfig(level=logging.ERROR, force=True)

from ts.torch_handler.base_handler import BaseHandler


class MyHandler(BaseHandler):
    pass
