"""Starting again when a port that was free is taken meanwhile; the rest of Server is tested on a real one."""

from types import SimpleNamespace

import pytest

from tsbatch.errors import ServerError
from tsbatch.serving import server
from tsbatch.serving.server import Server

TAKEN = "TorchServe ended while starting: java.io.IOException: Failed to bind to address: http://127.0.0.1:27157"


@pytest.fixture
def starts(monkeypatch):
    """What each start does, in turn: an error to raise, or the arguments of Server."""
    outcomes = []

    class Start:
        def __init__(self, **_):
            pass

        def run(self, timeout):
            outcome = outcomes.pop(0)
            if isinstance(outcome, Exception):
                raise outcome
            return outcome

    monkeypatch.setattr(server, "Start", Start)
    return outcomes


def test_a_port_taken_meanwhile_is_tried_again_with_others(starts):
    starts += [ServerError(TAKEN), ServerError(TAKEN), ("instance", "process", "keeper")]
    assert Server.start().instance == "instance"


def test_it_gives_up_with_what_java_said(starts):
    starts += [ServerError(TAKEN)] * 4
    with pytest.raises(ServerError, match="Failed to bind"):
        Server.start()
    assert len(starts) == 1


def test_any_other_failure_is_final(starts):
    starts += [ServerError("no memory"), ("instance", "process", "keeper")]
    with pytest.raises(ServerError, match="no memory"):
        Server.start()


def test_ctrl_c_while_it_is_stopped_leaves_nothing_half_done():
    done = []

    def interrupted():
        done.append("instance")
        if done.count("instance") == 1:
            raise KeyboardInterrupt

    keeper = SimpleNamespace(stop=lambda: done.append("keeper"))
    instance = SimpleNamespace(detached=False, stop=interrupted)
    process = SimpleNamespace(wait=lambda: done.append("process"))
    with pytest.raises(KeyboardInterrupt):
        Server(instance, process, keeper).stop()
    assert done == ["keeper", "instance", "keeper", "instance", "process"]
