# expect: handler-pickle:11
import pickle

from ts.torch_handler.base_handler import BaseHandler


class MyHandler(BaseHandler):
    def initialize(self, context):
        super().initialize(context)
        with open("labels.pkl", "rb") as stream:
            self.labels = pickle.load(stream)
