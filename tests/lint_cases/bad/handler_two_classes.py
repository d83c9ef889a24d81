# expect: handler-two-classes:12
import dataclasses

from ts.torch_handler.base_handler import BaseHandler


@dataclasses.dataclass
class Options:
    top: int = 5


class MyHandler(BaseHandler):
    options = Options()
