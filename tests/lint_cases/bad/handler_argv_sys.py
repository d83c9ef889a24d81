# expect: handler-argv:8
import sys

from ts.torch_handler.base_handler import BaseHandler


class MyHandler(BaseHandler):
    device = sys.argv[1]
