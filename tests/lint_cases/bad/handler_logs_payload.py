# expect: handler-logs-payload:7
from ts.torch_handler.base_handler import BaseHandler


class MyHandler(BaseHandler):
    def preprocess(self, data):
        print("got", data)
        return [row["body"] for row in data]
