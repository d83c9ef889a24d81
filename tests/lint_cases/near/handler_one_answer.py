# near: handler-one-answer
from ts.torch_handler.base_handler import BaseHandler


class MyHandler(BaseHandler):
    def postprocess(self, data):
        return [*data.tolist()]
