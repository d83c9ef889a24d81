# expect: handler-one-answer:7
from ts.torch_handler.base_handler import BaseHandler


class MyHandler(BaseHandler):
    def postprocess(self, data):
        return [{"label": int(data.argmax())}]
