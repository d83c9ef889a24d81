# expect: handler-argv:8
import argparse

from ts.torch_handler.base_handler import BaseHandler


class MyHandler(BaseHandler):
    options = argparse.ArgumentParser().parse_args()
