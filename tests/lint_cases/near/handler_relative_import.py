# near: handler-relative-import
from net import Net
from ts.torch_handler.base_handler import BaseHandler


class MyHandler(BaseHandler):
    network = Net
