# expect: handler-root-logging:4
import logging

logging.getLogger().setLevel(logging.WARNING)

from ts.torch_handler.base_handler import BaseHandler


class MyHandler(BaseHandler):
    pass
