# near: handler-no-list
from ts.torch_handler.base_handler import BaseHandler


class MyHandler(BaseHandler):
    def postprocess(self, data):
        def pair(row):
            return row, 1

        return [dict([pair(row)]) for row in data.tolist()]
