"""The probes' commands, run against an HTTP server that answers as TorchServe's management API does."""

from __future__ import annotations

import json
import threading
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest

from tests.kserve import check_of, own_archive
from tsbatch.kserve.archive_facts import facts_of
from tsbatch.kserve.health_probes import drain, lifecycle, probes, ready_command


class Management(BaseHTTPRequestHandler):
    def do_GET(self):
        status, body = self.server.answers.get(self.path, (404, {"code": 404, "message": "Model not found"}))
        self.send_response(status)
        self.end_headers()
        self.wfile.write(json.dumps(body).encode())

    def log_message(self, *_):
        pass


@pytest.fixture
def management():
    with HTTPServer(("127.0.0.1", 0), Management) as server:
        server.answers = {}
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        yield server
        server.shutdown()


def run(server, model="m", count=1):
    """Whether the command would end with 0; its few lines are run here, since a busy machine starts Python slowly."""
    [program, option, code] = ready_command(model, count=count)
    assert (program, option) == ("python", "-c")
    try:
        exec(code.replace("8081", str(server.server_port)), {})
    except SystemExit as ended:
        return not ended.code
    except Exception:
        return False
    raise AssertionError("it must end with an exit code")


def workers(*states):
    return 200, [{"modelName": "m", "workers": [{"id": str(n), "status": state} for n, state in enumerate(states)]}]


def test_ready_counts_the_workers_that_are(management):
    management.answers["/models/m"] = workers("READY", "UNLOADING", "READY")
    assert run(management, count=1)
    assert run(management, count=2)
    assert not run(management, count=3)


def test_not_ready_while_loading_or_without_the_model(management):
    management.answers["/models/m"] = workers("UNLOADING")
    assert not run(management)
    assert not run(management, "other")


@pytest.fixture
def facts(tmp_path):
    mar = own_archive(tmp_path)
    return facts_of(mar, check_of(mar, "m"))


def test_started_is_all_workers_and_ready_is_one(facts):
    found = probes(facts)
    assert found["startupProbe"]["exec"]["command"] == ready_command("m", count=2)
    assert found["readinessProbe"]["exec"]["command"] == ready_command("m", count=1)
    assert found["livenessProbe"]["httpGet"] == {"path": "/ping", "port": 8080}


def test_kubernetes_waits_longer_than_torchserve_does(facts):
    probe = probes(facts)["startupProbe"]
    # 120 s until Python must be up, then startupTimeout (60 here)
    assert probe["periodSeconds"] * probe["failureThreshold"] >= 120 + 60
    patient = probes(replace(facts, requirements=True))["startupProbe"]
    assert patient["failureThreshold"] > probe["failureThreshold"]


def test_what_was_asked_is_answered_before_the_end(facts):
    assert drain(facts) == 15
    assert drain(replace(facts, slowest=20.0)) == 40
    assert lifecycle(facts)["preStop"]["exec"]["command"] == ["sh", "-c", "sleep 15; torchserve --stop"]
