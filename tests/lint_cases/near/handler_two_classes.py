# near: handler-two-classes
from net import Net, Options
from ts.torch_handler.base_handler import BaseHandler


class MyHandler(BaseHandler):
    class Inner:
        pass

    options = Options()
    network = Net
