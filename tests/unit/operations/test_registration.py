"""Another version of a model, registered beside the one that runs; test_management_client.py has the rest."""

from __future__ import annotations

import pytest

from tsbatch.errors import ServerError
from tsbatch.operations import registration


def described(version):
    return {"modelName": "m", "modelVersion": version, "batchSize": 8}


class Server:
    """A management API with m 1.0, to which 2.0 comes; it remembers what it was told to do."""

    def __init__(self):
        self.done, self.there, self.default, self.fail = [], ["1.0"], "1.0", False

    def follow(self):
        return None

    def every_version(self):
        return [described(version) for version in self.there]

    def describe(self, name, version=None):
        return described(version or self.default)

    def register(self, url, **asked):
        self.done.append("register")
        self.there.append("2.0")

    def wait_ready(self, name, version, **options):
        self.done.append(f"{version} is READY")
        return described(version)

    def set_default(self, name, version):
        self.done.append(f"default {version}")
        if self.fail:
            self.fail = False
            raise ServerError("it cannot be")
        self.default = version

    def unregister(self, name, version):
        self.done.append(f"unregister {version}")


@pytest.fixture
def server():
    return Server()


def test_another_version_takes_over_once_it_is_ready(server):
    done = registration.register(server, "http://host/m.mar", default=True)
    assert (done.model["modelVersion"], done.replaced, server.default) == ("2.0", "1.0", "2.0")
    assert server.done == ["register", "2.0 is READY", "default 2.0"]


def test_unless_it_is_asked_for_requests_go_on_to_the_old_version(server):
    assert registration.register(server, "http://host/m.mar").replaced is None
    assert server.done == ["register", "2.0 is READY"]


def test_the_first_version_is_the_default_by_itself(server):
    server.there, server.default = [], "2.0"
    assert registration.register(server, "http://host/m.mar", default=True).replaced is None
    assert server.done == ["register", "2.0 is READY"]


def test_a_version_that_cannot_take_over_is_not_left_behind(server):
    server.fail = True
    with pytest.raises(ServerError, match="it cannot be"):
        registration.register(server, "http://host/m.mar", default=True)
    assert server.done[2:] == ["default 2.0", "default 1.0", "unregister 2.0"]
    assert server.default == "1.0"
