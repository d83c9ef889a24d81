from __future__ import annotations

import shlex
from types import SimpleNamespace

from tsbatch.operations.curl_commands import curl_line
from tsbatch.serving.tokens import KeyFile


def instance(tmp_path, lifetime=60):
    return SimpleNamespace(
        token_lifetime=lifetime,
        keys=KeyFile(tmp_path, "", lifetime),
        inference_address="http://127.0.0.1:1",
        management_address="http://127.0.0.1:2",
    )


def test_the_token_is_read_when_the_line_runs(tmp_path):
    words = shlex.split(curl_line(instance(tmp_path), "/predictions/m", data={"inputs": "it's é"}))
    assert words == [
        *("curl", "-H", f"@{tmp_path}/inference.header", "-H", "Content-Type: application/json"),
        *("-d", '{"inputs": "it\'s é"}', "http://127.0.0.1:1/predictions/m"),
    ]


def test_the_management_address_has_its_own_token(tmp_path):
    line = curl_line(instance(tmp_path), "/models", kind="management")
    assert line == f"curl -H @{tmp_path}/management.header http://127.0.0.1:2/models"


def test_without_tokens(tmp_path):
    assert curl_line(instance(tmp_path, 0), "/ping") == "curl http://127.0.0.1:1/ping"
