# near: handler-argv
import argparse

from ts.torch_handler.base_handler import BaseHandler


class MyHandler(BaseHandler):
    pass


if __name__ == "__main__":
    argparse.ArgumentParser().parse_args()
