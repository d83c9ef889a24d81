from __future__ import annotations

import socket

import pytest

from tsbatch.errors import ServerError
from tsbatch.system import ports


def test_ports_are_different_and_free():
    found = ports.free_ports(20)
    assert len(set(found)) == 20
    assert all(map(ports.is_free, found))


def test_a_block_of_ports():
    found = ports.free_ports(8, consecutive=True)
    assert found == list(range(found[0], found[0] + 8))


def test_a_port_somebody_listens_on_is_not_free():
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        assert not ports.is_free(other.getsockname()[1])


@pytest.mark.parametrize("consecutive", [True, False])
def test_when_there_are_none(monkeypatch, consecutive):
    monkeypatch.setattr(ports, "is_free", lambda _port: False)
    with pytest.raises(ServerError, match="no 3 free ports"):
        ports.free_ports(3, consecutive=consecutive)
