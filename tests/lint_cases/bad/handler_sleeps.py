# expect: handler-sleeps:9
import time

from ts.torch_handler.base_handler import BaseHandler


class MyHandler(BaseHandler):
    def inference(self, data):
        time.sleep(0.1)
        return self.model(data)
