from ts.torch_handler.base_handler import BaseHandler


class MyHandler(BaseHandler):
    pass
