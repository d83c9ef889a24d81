# near: handler-falsy
from ts.torch_handler.base_handler import BaseHandler


class MyHandler(BaseHandler):
    def preprocess(self, data):
        return [row["data"] if "data" in row else row.get("body") for row in data]
