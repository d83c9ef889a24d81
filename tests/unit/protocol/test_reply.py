"""Replies and the sink that keeps them."""

from __future__ import annotations

import pytest

from tsbatch.protocol.reply import ListSink, Reply


def test_replies_come_back_in_the_order_of_the_requests():
    sink = ListSink(3)
    for index in (2, 0, 1):
        sink.send(index, Reply(str(index).encode()))
    assert [reply.body for reply in sink.replies] == [b"0", b"1", b"2"]


def test_a_request_without_a_reply_is_not_hidden():
    sink = ListSink(3)
    sink.send(1, Reply(b""))
    with pytest.raises(RuntimeError, match=r"\[0, 2\]"):
        _ = sink.replies


def test_a_reply_is_json_and_fine_unless_said_otherwise():
    reply = Reply(b"{}")
    assert (reply.status, reply.phrase, reply.content_type, reply.headers) == (200, "OK", "application/json", {})
    assert Reply(b"").headers is not reply.headers
