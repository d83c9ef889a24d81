from ts.torch_handler.base_handler import BaseHandler


class MyHandler(BaseHandler):
    def postprocess(self, data):
        self.context.metrics.add_counter("Tokens", data.numel())
        return data.tolist()
