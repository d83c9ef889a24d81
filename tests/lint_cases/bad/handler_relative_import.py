# expect: handler-relative-import:4
from ts.torch_handler.base_handler import BaseHandler

from .net import Net


class MyHandler(BaseHandler):
    network = Net
