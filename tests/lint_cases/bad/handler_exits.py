# expect: handler-exits:11
import sys

from ts.torch_handler.base_handler import BaseHandler


class MyHandler(BaseHandler):
    def preprocess(self, data):
        rows = [row.get("body") for row in data]
        if None in rows:
            sys.exit("no body")
        return rows
