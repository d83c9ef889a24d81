"""Reading ahead: the same messages as TorchServe reads by itself, in fewer system calls."""

from __future__ import annotations

import itertools
import socket
import threading

import pytest
import ts
from hypothesis import given
from hypothesis import strategies as st
from ts.protocol import otf_message_handler as messages

from tsbatch.emulation.client_request import Call
from tsbatch.emulation.frames import encode_batch
from tsbatch.worker.adapter import READ_AHEAD, _reading_ahead, read_ahead

ORIGINAL = messages._retrieve_buffer


@pytest.fixture(autouse=True)
def as_shipped():
    patched, messages._retrieve_buffer = messages._retrieve_buffer, ORIGINAL
    yield
    messages._retrieve_buffer = patched


class Pieces:
    """A connection whose bytes come in given pieces, as a socket's may; counts the calls."""

    def __init__(self, *pieces):
        self.pieces = list(pieces)
        self.calls = 0

    def recv(self, size):
        self.calls += 1
        if not self.pieces:
            return b""
        piece, self.pieces[0] = self.pieces[0][:size], self.pieces[0][size:]
        if not self.pieces[0]:
            del self.pieces[0]
        return piece


def frame(count=3, body=b'{"inputs": "hello"}'):
    return bytes(encode_batch(Call(body).to_wire(f"id-{number}") for number in range(count)))


@given(
    bodies=st.lists(st.binary(max_size=300), min_size=1, max_size=4),
    cuts=st.lists(st.integers(0, 4000), max_size=12),
    batches=st.integers(1, 3),
)
def test_however_the_bytes_come_the_messages_are_the_same(bodies, cuts, batches):
    whole = b"".join(frame(2, body) for body in bodies) * batches
    edges = [0, *sorted(cut for cut in cuts if cut < len(whole)), len(whole)]
    pieces = [whole[start:stop] for start, stop in itertools.pairwise(edges) if start < stop]

    def read():
        connection = Pieces(*pieces)
        return [messages.retrieve_msg(connection) for _ in range(len(bodies) * batches)]

    messages._retrieve_buffer = ORIGINAL
    expected = read()
    messages._retrieve_buffer = _reading_ahead(ORIGINAL)
    assert read() == expected


def test_it_takes_fewer_calls():
    ahead, alone = Pieces(frame(32)), Pieces(frame(32))
    messages.retrieve_msg(alone)
    read_ahead()
    messages.retrieve_msg(ahead)
    assert ahead.calls == 1
    assert alone.calls > 32 * 10


def test_a_body_larger_than_the_buffer_over_a_real_socket():
    body = bytes(range(256)) * (READ_AHEAD // 256 * 5)
    near, far = socket.socketpair()
    read_ahead()
    with near, far:
        sender = threading.Thread(target=far.sendall, args=(frame(1, body) + frame(1, b"next"),))
        sender.start()
        first, second = messages.retrieve_msg(near)[1], messages.retrieve_msg(near)[1]
        sender.join()
    assert first[0]["parameters"][0]["value"] == body
    assert second[0]["parameters"][0]["value"] == b"next"


@pytest.mark.parametrize("said", [b"", b"I", b"I\0\0"], ids=["between messages", "after the command", "in a number"])
def test_a_frontend_that_hangs_up_ends_the_worker_as_ever(said):
    read_ahead()
    with pytest.raises(SystemExit) as ended:
        messages.retrieve_msg(Pieces(said) if said else Pieces())
    assert ended.value.code == 0


def test_another_connection_starts_anew():
    read_ahead()
    messages._retrieve_buffer(Pieces(b"abcdef"), 2)
    assert messages._retrieve_buffer(Pieces(b"xyz"), 2) == b"xy"


def test_what_comes_back_is_a_bytearray_as_torchserve_has_it():
    read_ahead()
    assert type(messages._retrieve_buffer(Pieces(b"ab"), 2)) is type(ORIGINAL(Pieces(b"ab"), 2)) is bytearray


def test_it_is_put_in_once():
    read_ahead()
    once = messages._retrieve_buffer
    read_ahead()
    assert messages._retrieve_buffer is once


def test_another_torchserve_is_left_alone(monkeypatch):
    monkeypatch.setattr(ts, "__version__", "0.13.0")
    read_ahead()
    assert messages._retrieve_buffer is ORIGINAL
