# expect: handler-no-list:9
import json

from ts.torch_handler.base_handler import BaseHandler


class MyHandler(BaseHandler):
    def handle(self, data, context):
        return json.dumps([row["body"] for row in data])
