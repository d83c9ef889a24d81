# expect: handler-opens:9, handler-opens:10
import json

from ts.torch_handler.base_handler import BaseHandler


class MyHandler(BaseHandler):
    def postprocess(self, data):
        with open("index_to_name.json") as stream:
            names = json.load(stream)
        return [names[row] for row in data.tolist()]
