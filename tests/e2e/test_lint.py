"""A slice of what lint and effective say, on one real TorchServe; tests/acceptance has the whole."""

from __future__ import annotations

import javaproperties
import yaml

from tests.acceptance.effective_cases import (
    API,
    YAMLS,
    combinations,
    config_text,
    described,
    differences,
    expected,
    make_archives,
)
from tests.e2e.raw_server import archive, raw_server
from tsbatch.lint.run import lint

LINES = "number_of_netty_threads=2\ncors_allowed_origin=* default_startup_timeout=33\nbatch_size=8\n"


def test_one_server(tmp_path):
    chosen = combinations(10)
    store, config = tmp_path / "store", tmp_path / "config.properties"
    make_archives(store, chosen)
    plain = archive(store, "plain")
    text = config_text(chosen).replace("default_startup_timeout=88\n", "") + LINES
    config.write_text(text)
    assert {"config-several-pairs", "config-model-key"} <= {finding.rule for finding in lint([config, plain])}
    properties = javaproperties.loads(text)
    problems = []
    with raw_server(store, text) as server:
        assert not server.console, server.console
        assert server.register("plain").status == 200
        held = server.describe("plain")
        assert (held["batchSize"], held["startupTimeout"]) == (1, 120)
        for each in chosen:
            assert server.register(each.name, **API[each.api]).status == 200
            source = YAMLS[each.yaml]
            told = expected(each, properties, None if source is None else yaml.safe_load(source), API[each.api])
            problems += [f"{each}: {line}" for line in differences(told, described(server, each.name))]
    assert problems == []
