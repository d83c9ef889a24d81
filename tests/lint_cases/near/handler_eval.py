# near: handler-eval
import ast

from ts.torch_handler.base_handler import BaseHandler


class MyHandler(BaseHandler):
    def initialize(self, context):
        super().initialize(context)
        self.model.eval()
        self.labels = ast.literal_eval(context.model_yaml_config["labels"])
