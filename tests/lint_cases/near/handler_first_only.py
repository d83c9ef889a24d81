# near: handler-first-only
from ts.torch_handler.base_handler import BaseHandler


class MyHandler(BaseHandler):
    def preprocess(self, data):
        first = data[0]
        return [row["body"][0] for row in data if row is not first]
