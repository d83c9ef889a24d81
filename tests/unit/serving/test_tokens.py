from __future__ import annotations

import json
import threading
import time
from datetime import datetime, timedelta, timezone
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from tsbatch.errors import ServerError
from tsbatch.serving import tokens
from tsbatch.serving.tokens import FixedToken, KeyFile


def write_keys(folder, seconds, inference="old-i", management="old-m"):
    def entry(key):
        moment = datetime.now(timezone.utc) + timedelta(seconds=seconds)
        return {"key": key, "expiration time": moment.isoformat().replace("+00:00", "123Z")}

    keys = {"management": entry(management), "inference": entry(inference), "API": {"key": "api"}}
    (folder / tokens.KEY_FILE).write_text(json.dumps(keys))


@pytest.fixture
def token_server(tmp_path):
    """Answers GET /token as TorchServe does: writes new keys, for the API key alone."""
    asked = []

    class Answer(BaseHTTPRequestHandler):
        def do_GET(self):
            asked.append(self.path)
            good = self.headers["Authorization"] == "Bearer api"
            if good:
                write_keys(tmp_path, 100, inference="new-i", management="new-m")
            self.send_response(200 if good else 400)
            self.end_headers()

        def log_message(self, *args):
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Answer)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}", asked
    server.shutdown()
    server.server_close()


def test_tokens_come_from_the_key_file(tmp_path):
    write_keys(tmp_path, 100)
    keys = KeyFile(tmp_path, "http://127.0.0.1:9", 100)
    assert (keys.token("inference"), keys.token("management")) == ("old-i", "old-m")
    assert 99 < keys.seconds_left("inference") <= 100


def test_fresh_tokens_are_kept_and_written_for_curl(tmp_path):
    write_keys(tmp_path, 100)
    keys = KeyFile(tmp_path, "http://127.0.0.1:9", 100)
    keys.renew()
    header = keys.header_file("inference")
    assert header.read_text() == "Authorization: Bearer old-i\n"
    assert header.stat().st_mode & 0o077 == 0


def test_tokens_that_are_due_are_renewed(tmp_path, token_server):
    address, asked = token_server
    write_keys(tmp_path, 20)
    keys = KeyFile(tmp_path, address, 100)
    keys.renew()
    assert asked == ["/token?type=inference"]
    assert keys.header_file("inference").read_text() == "Authorization: Bearer new-i\n"
    keys.renew()
    assert len(asked) == 1


def test_a_refused_or_unreachable_renewal(tmp_path, token_server):
    address, _ = token_server
    write_keys(tmp_path, 1)
    keys = json.loads((tmp_path / tokens.KEY_FILE).read_text())
    (tmp_path / tokens.KEY_FILE).write_text(json.dumps({**keys, "API": {"key": "wrong"}}))
    with pytest.raises(ServerError, match="answered with status 400"):
        KeyFile(tmp_path, address, 100).renew()
    with pytest.raises(ServerError, match="cannot renew the inference token"):
        KeyFile(tmp_path, "http://127.0.0.1:9", 100).renew()


def test_no_key_file_means_no_token(tmp_path):
    keys = KeyFile(tmp_path, "http://127.0.0.1:9", 100)
    assert keys.token("inference") is None
    keys.renew()
    assert list(tmp_path.iterdir()) == []


def test_a_half_written_key_file_is_read_again(tmp_path):
    (tmp_path / tokens.KEY_FILE).write_text('{"management"')
    threading.Timer(0.2, write_keys, (tmp_path, 100)).start()
    assert KeyFile(tmp_path, "", 100).token("inference") == "old-i"


def test_a_broken_key_file(tmp_path, monkeypatch):
    monkeypatch.setattr(time, "sleep", lambda _seconds: None)
    (tmp_path / tokens.KEY_FILE).write_text("{")
    with pytest.raises(ServerError, match="cannot read the token file"):
        KeyFile(tmp_path, "", 100).token("inference")


@pytest.mark.parametrize(
    "text, seconds",
    [
        ("1970-01-01T00:00:01.500000001Z", 1.500000001),
        ("1970-01-01T00:01:00Z", 60.0),
        ("+10000-01-01T00:00:00Z", float("inf")),
    ],
)
def test_times_as_java_writes_them(text, seconds):
    assert tokens.expiry(text) == seconds


def test_a_given_token_is_for_everything():
    assert FixedToken("t").token("inference") == FixedToken("t").token("management") == "t"
