"""A real TorchServe does with the bad file what lint says, and with the mended one what was wished."""

from __future__ import annotations

import json

import pytest

from tests.acceptance.effective_cases import described
from tests.acceptance.lint_claims import CONFIG_CLAIMS, HANDLE, HANDLER_CLAIMS, YAML_CLAIMS
from tests.acceptance.support import wait_for
from tests.e2e.raw_server import RawServer, archive, raw_server
from tests.e2e.support import Answer, at_once, request
from tsbatch.lint.documents import Machine
from tsbatch.lint.fixing import fix
from tsbatch.lint.run import lint

PORTS = {"{inference}": "8080", "{management}": "8081", "{metrics}": "8082"}


def mended(folder, name: str, rule: str, bad: str, good: str | None, env: dict[str, str] | None = None) -> str:
    """The good text, after lint found the rule in the bad one and not in the good one."""
    path, machine = folder / name, Machine(environ=env or {})
    path.write_text(_swap(bad, PORTS))
    found = lint([path], machine=machine)
    assert rule in {finding.rule for finding in found}
    if good is None:
        assert fix([finding for finding in found if finding.rule == rule])
    else:
        path.write_text(_swap(good, PORTS))
    assert rule not in {finding.rule for finding in lint([path], machine=machine)}
    return _swap(path.read_text(), {f":{port}": f":{name}" for name, port in PORTS.items()})


def _swap(text: str, words: dict[str, str]) -> str:
    for one, other in words.items():
        text = text.replace(one, other)
    return text


@pytest.mark.parametrize("claim", CONFIG_CLAIMS, ids=lambda claim: claim.rule)
def test_line_1_config_properties(tmp_path, claim, record_property):
    good = mended(tmp_path, "config.properties", claim.rule, claim.bad, claim.good, claim.env)
    for name, yaml in claim.files.items():
        archive(tmp_path / "store", name, config=yaml)
    seen = []
    for text in (claim.bad, good):
        with raw_server(tmp_path / "store", text, env=claim.env) as server:
            seen.append(claim.see(server))
    assert seen == [claim.then, claim.wished]
    record_property(f"line1_{claim.rule}", f"{seen[0]} as it was, {seen[1]} mended")


def test_line_1_model_config(tmp_path, record_property):
    """All claims about the YAML on one server."""
    for claim in YAML_CLAIMS:
        good = mended(tmp_path, "model-config.yaml", claim.rule, claim.bad, claim.good)
        archive(tmp_path / "store", f"{claim.rule}-bad", config=claim.bad)
        archive(tmp_path / "store", f"{claim.rule}-good", config=good)
    problems = []
    with raw_server(tmp_path / "store", "") as server:
        for claim in YAML_CLAIMS:
            for name, expected in (("bad", claim.then), ("good", claim.wished)):
                seen = told_about(server, f"{claim.rule}-{name}", expected)
                if seen != expected:
                    problems.append(f"{claim.rule} {name}: {seen}, expected {expected}")
    assert problems == []
    record_property("line1_yaml", f"{len(YAML_CLAIMS)} rules, each bad and mended")


def told_about(server: RawServer, name: str, expected) -> object:
    """What TorchServe does with an archive, in the terms of ``expected``: a status, or some settings."""
    answer = server.register(name)
    if isinstance(expected, int) or answer.status != 200:
        return answer.status
    real = described(server, name)
    return {key: real[key] for key in expected}


def told_by_two(server: RawServer, name: str) -> str:
    """Everything TorchServe says when two requests come together; starts with the statuses."""
    before = len(server.log())
    answer = server.register(name, initial_workers=1, batch_size=2, max_batch_delay=1000, startup_timeout=20)
    if answer.status != 200:
        return f"{answer.status} {answer.body.decode()} {server.log()[before:]}"
    answers: list[Answer] = at_once([lambda: server.predict(name)] * 2)
    return f"{answers[0].status} {answers[1].status} {answers[0].body.decode()} {server.log()[before:]}"


def test_line_1_handlers(tmp_path, record_property):
    """All claims about handler modules on one server."""
    for claim in HANDLER_CLAIMS:
        good = mended(tmp_path, "own_handler.py", claim.rule, claim.bad, claim.good)
        archive(tmp_path / "store", f"{claim.rule}-bad", handler=claim.bad)
        archive(tmp_path / "store", f"{claim.rule}-good", handler=good)
    problems = []
    with raw_server(tmp_path / "store", "") as server:
        for claim in HANDLER_CLAIMS:
            bad = told_by_two(server, f"{claim.rule}-bad")
            good = told_by_two(server, f"{claim.rule}-good")
            if claim.then not in bad or bad.startswith("200 200"):
                problems.append(f"{claim.rule}: {bad[:300]}")
            if not good.startswith("200 200"):
                problems.append(f"{claim.rule} mended: {good[:300]}")
    assert problems == []
    record_property("line1_handlers", f"{len(HANDLER_CLAIMS)} rules, each bad and mended")


def rules_of(*paths) -> set[str]:
    return {finding.rule for finding in lint(list(paths))}


YAML = "batchSize: 8\nresponseTimeout: 60\nstartupTimeout: 60\n"


def test_line_1_archives(tmp_path, record_property):
    """The manifest: a YAML it does not name, a class behind a colon, a handler that is not at the root."""
    store = tmp_path / "store"
    unnamed = archive(store, "unnamed", config=YAML, manifest={"configFile": None})
    named = archive(store, "named", config=YAML)
    colon = archive(store, "colon", manifest={"handler": "own_handler.py:Echo"})
    below = archive(store, "below", manifest={"handler": "src/other.py"}, extra={"src/other.py": "class A: pass\n"})
    assert "archive-config-unnamed" in rules_of(unnamed)
    assert "archive-handler-class" in rules_of(colon)
    assert "archive-missing-file" in rules_of(below)
    assert not rules_of(named) & {"archive-config-unnamed", "archive-handler-class", "archive-missing-file"}
    with raw_server(store, "") as server:
        assert told_about(server, "unnamed", {"batchSize": 1}) == {"batchSize": 1}
        assert told_by_two(server, "named").startswith("200 200")
        assert server.describe("named")["batchSize"] == 2  # the API wins over the YAML's 8
        assert "takes no arguments" in told_by_two(server, "colon")
        assert "No module named 'ts.torch_handler.src/other'" in told_by_two(server, "below")
    record_property("line1_archives", "3 rules")


def test_line_1_together(tmp_path, record_property):
    """A version that does not match, a default that a YAML pins, and an envelope that cannot batch."""
    store, config = tmp_path / "store", tmp_path / "config.properties"
    model = archive(store, "m", config="batchSize: 2\nmaxBatchDelay: 1000\n")
    plain = archive(store, "plain")
    models = json.dumps({"plain": {"1": {"batchSize": 8}}})
    text = f"models={models}\ndefault_startup_timeout=300\nservice_envelope=kserve\n"
    config.write_text(text)
    assert rules_of(config, model, plain) >= {"set-models-version", "set-timeouts-ignored", "set-envelope"}
    with raw_server(store, text) as server:
        assert told_about(server, "plain", {"batchSize": 1}) == {"batchSize": 1}
        server.register("m", initial_workers=1)
        assert server.describe("m")["startupTimeout"] == 120
        answers = at_once([lambda: server.predict("m")] * 2)
        assert {answer.status for answer in answers} == {503}
    right = text.replace('"1"', '"1.0"').replace("service_envelope=kserve\n", "")
    config.write_text(right)
    archive(store, "m", config="batchSize: 2\nmaxBatchDelay: 1000\nresponseTimeout: 120\nstartupTimeout: 300\n")
    assert not rules_of(config, model, plain) & {"set-models-version", "set-timeouts-ignored", "set-envelope"}
    with raw_server(store, right) as server:
        assert told_about(server, "plain", {"batchSize": 8}) == {"batchSize": 8}
        server.register("m", initial_workers=1)
        assert server.describe("m")["startupTimeout"] == 300
        answers = at_once([lambda: server.predict("m")] * 2)
        assert {answer.status for answer in answers} == {200}
    record_property("line1_together", "3 rules, each bad and mended")


METRICS = """
dimensions: ["ModelName", "Level"]
ts_metrics:
  counter:
    - {name: ts_inference_requests_total, unit: Count, dimensions: ["model_name", "model_version", "hostname"]}
model_metrics:
  gauge:
    - {name: PredictionTime, unit: ms, dimensions: ["ModelName", "Level"]}
"""
TOKENS = "  counter:\n    - {name: Tokens, unit: Count, dimensions: ['ModelName', 'Level']}\n"
BAD_METRICS = {
    "metrics-syntax": "ts_metrics: [\n",
    "metrics-key": f"{METRICS}custom_metrics: {{}}\n",
    "metrics-field": f"{METRICS}  counter:\n    - {{name: Tokens, dimensions: ['Level']}}\n",
}


@pytest.mark.parametrize("rule", BAD_METRICS)
def test_line_1_metrics_files(tmp_path, rule, record_property):
    path = tmp_path / "metrics.yaml"
    archive(tmp_path / "store", "m")
    seen = []
    for text in (BAD_METRICS[rule], METRICS):
        path.write_text(text)
        assert (rule in rules_of(path)) is (text != METRICS)
        with raw_server(tmp_path / "store", f"metrics_config={path.as_posix()}\n") as server:
            works = told_by_two(server, "m").startswith("200 200")
            seen.append((works, bool(wait_for(lambda: "requests_total" in server.log("ts_metrics.log"), 3))))
    assert seen == [(rule == "metrics-key", False), (True, True)]
    record_property(f"line1_{rule}", "no metrics as it was, metrics mended; a worker loads with metrics-key alone")


def test_line_1_a_metric_that_nobody_names(tmp_path, record_property):
    emits = HANDLE.format(body='self.context.metrics.add_counter("Tokens", 5); return ["ok"] * len(data)')
    handler, path, config = tmp_path / "own_handler.py", tmp_path / "metrics.yaml", tmp_path / "config.properties"
    handler.write_text(emits)
    archive(tmp_path / "store", "m", handler=emits)
    text = f"metrics_config={path.as_posix()}\n"
    config.write_text(text)
    seen = []
    for metrics in (METRICS, METRICS + TOKENS):
        path.write_text(metrics)
        assert ("set-metric-unnamed" in rules_of(config, path, handler)) is (metrics == METRICS)
        with raw_server(tmp_path / "store", text) as server:
            assert told_by_two(server, "m").startswith("200 200")
            assert wait_for(lambda: "PredictionTime" in server.log("model_metrics.log"))
            seen.append("Tokens.Count" in server.log("model_metrics.log"))
    assert seen == [False, True]
    record_property("line1_set-metric-unnamed", "dropped as it was, in model_metrics.log mended")


def test_line_1_one_address_for_both_apis(tmp_path, record_property):
    config = tmp_path / "config.properties"
    seen = []
    for port in ("{inference}", "{management}"):
        text = f"management_address=http://127.0.0.1:{port}\ndisable_token_authorization=false\n"
        config.write_text(text.replace("{inference}", "8080").replace("{management}", "8081"))
        assert ("config-same-address" in rules_of(config)) is (port == "{inference}")
        with raw_server(tmp_path / "store", text) as server:
            address = server.inference if port == "{inference}" else server.management
            calls = [
                request(address, "GET", "/models", headers={"Authorization": f"Bearer {server.keys()[kind]}"})
                for kind in ("management", "inference", "API")
            ]
            seen.append([answer.status for answer in calls])
    assert seen == [[400, 400, 400], [200, 400, 400]]
    record_property("line1_config-same-address", "no token works as it was, the management token mended")
