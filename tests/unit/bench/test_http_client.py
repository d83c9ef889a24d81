"""The thin HTTP client, against answers put together by hand and against a server on a socket."""

from __future__ import annotations

import asyncio
import itertools
import ssl
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.bench.support import OK, serving
from tsbatch.bench import http_client
from tsbatch.bench.http_client import Address, AnswerReader, connect, header
from tsbatch.errors import UsageError

BODY = b'{"a": "\r\n0\r\n\r\n"}'
ANSWERS = {
    "length": (b"HTTP/1.1 200 OK\r\nContent-LENGTH: 16\r\n\r\n" + BODY, 200, BODY, True),
    "chunks": (
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip, chunked\r\n\r\n%b"
        % b'7;x=y\r\n{"a": "\r\n9\r\n\r\n0\r\n\r\n"}\r\n0\r\nTrailer: t\r\n\r\n',
        200,
        b'{"a": "\r\n0\r\n\r\n"}',
        True,
    ),
    "nothing": (b"HTTP/1.1 204 No Content\r\nServer: x\r\n\r\n", 204, b"", True),
    "empty": (b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n", 200, b"", True),
    "closing": (b"HTTP/1.1 503 Busy\r\nConnection: close\r\nContent-Length: 2\r\n\r\nno", 503, b"no", False),
    "old": (b"HTTP/1.0 200 OK\r\nContent-Length: 2\r\n\r\nno", 200, b"no", False),
    "old but kept": (
        b"HTTP/1.0 200 OK\r\nConnection: Keep-Alive\r\nContent-Length: 2\r\n\r\nno",
        200,
        b"no",
        True,
    ),
    "continued": (
        b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nno",
        200,
        b"no",
        True,
    ),
    "too much": (b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nno, more", 200, b"no", False),
}


@pytest.mark.parametrize("raw, status, body, keep", ANSWERS.values(), ids=ANSWERS)
def test_an_answer_at_once(raw, status, body, keep):
    reader = AnswerReader()
    answer = reader.feed(raw)
    assert (answer.status, answer.body, reader.keep) == (status, body, keep)


@given(st.sampled_from(["length", "chunks", "continued", "empty"]), st.lists(st.integers(0, 120), max_size=6))
def test_an_answer_in_any_pieces(name, cuts):
    raw, status, body, keep = ANSWERS[name]
    cuts = [0, *sorted(cut for cut in cuts if cut < len(raw)), len(raw)]
    reader = AnswerReader()
    answers = [reader.feed(raw[start:stop]) for start, stop in itertools.pairwise(cuts)]
    assert [answer for answer in answers[:-1] if answer] == []
    assert (answers[-1].status, answers[-1].body, reader.keep) == (status, body, keep)


def test_a_body_that_ends_with_the_connection():
    reader = AnswerReader()
    assert reader.empty
    assert reader.feed(b"HTTP/1.1 200 OK\r\n\r\nab") is None
    assert reader.feed(b"c") is None
    assert not reader.empty
    assert reader.end().body == b"abc"


def test_half_an_answer_is_none():
    reader = AnswerReader()
    assert reader.feed(b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nab") is None
    assert reader.end() is None


@pytest.mark.parametrize("raw", [b"SSH-2.0-x\r\n\r\n", b"HTTP/1.1 abc\r\n\r\n"])
def test_what_is_no_http_is_an_error(raw):
    with pytest.raises(ValueError, match=r"not HTTP|invalid literal"):
        AnswerReader().feed(raw)


def test_a_header_that_comes_twice():
    head = b"http/1.1 200 ok\r\nx-b: 1\r\nb: one\r\nb:two \r\n"
    assert header(head, b"b") == b"one, two"
    assert header(head, b"c") == b""


def test_addresses():
    assert Address.parse("http://localhost:8080/predictions/m?x=1") == Address(
        "localhost", 8080, False, "/predictions/m?x=1"
    )
    assert Address.parse("https://example.org") == Address("example.org", 443, True, "/")
    assert Address.parse("http://[::1]:1/").netloc == "[::1]:1"


@pytest.mark.parametrize(
    "url", ["localhost:8080/x", "ftp://x/", "http://", "http://x:99999/", "http://[::1/", "http://x/\r\nEvil: 1"]
)
def test_what_is_no_address(url):
    with pytest.raises(UsageError, match="is not an address; expected one like http://"):
        Address.parse(url)


def asked(serve, timeout=5.0, times=1):
    """What ``times`` requests on one connection are answered by a server whose connections ``serve`` handles."""

    async def work():
        async with serving(serve) as port:
            connection = await connect(Address("127.0.0.1", port, False, "/"), 5)
            answers = [await connection.request(b"GET!", timeout) for _ in range(times)]
            usable = connection.usable
            connection.close()
        return answers, usable

    return asyncio.run(work())


def test_a_connection_is_used_again():
    async def serve(reader, writer):
        while await reader.read(4):
            writer.write(OK)

    answers, usable = asked(serve, times=3)
    assert [answer.body for answer in answers] == [b"ab"] * 3
    assert usable


def test_no_answer_in_time():
    async def serve(reader, writer):
        await reader.read()

    (answer,), usable = asked(serve, timeout=0.05)
    assert (answer.status, answer.reason, usable) == (0, "no answer in 0.05 s", False)


def test_a_server_that_hangs_up():
    async def serve(reader, writer):
        await reader.read(4)

    (answer,), usable = asked(serve)
    assert (answer.status, answer.reason, answer.stale, usable) == (0, "connection closed", True, False)


def test_a_server_that_hangs_up_half_way():
    async def serve(reader, writer):
        await reader.read(4)
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nab")

    (answer,), _ = asked(serve)
    assert (answer.status, answer.stale) == (0, False)


def test_a_server_that_speaks_something_else():
    async def serve(reader, writer):
        await reader.read(4)
        writer.write(b"SSH-2.0-x\r\n\r\n")
        await reader.read()

    (answer,), usable = asked(serve)
    assert (answer.status, answer.reason, usable) == (0, "the answer is not HTTP/1.1", False)


def test_an_encrypted_connection(monkeypatch):
    # A key of nobody's, made for this test, with a certificate signed by itself.
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(Path(__file__).with_name("localhost.pem"))

    async def serve(reader, writer):
        while await reader.read(4):
            writer.write(OK)

    async def work():
        async with serving(serve, tls=context) as port:
            connection = await connect(Address("127.0.0.1", port, True, "/"), 5)
            answer = await connection.request(b"GET!", 5)
            connection.close()
            # Elsewhere it would have to be signed by somebody known.
            monkeypatch.setattr(http_client, "LOCAL_HOSTS", frozenset())
            with pytest.raises(OSError, match="certificate verify failed"):
                await connect(Address("127.0.0.1", port, True, "/"), 5)
        return answer

    assert asyncio.run(work()).body == b"ab"
