"""The manifests of three models pass the models of the package kserve, and each wrong field fails."""

from __future__ import annotations

import json

import pytest

from tests.acceptance.kserve_models import PACKAGES, ask_kserve, deploy, judged
from tests.kserve import SCHEMA, faults, mutated


@pytest.fixture(scope="module")
def three(tmp_path_factory):
    folder = tmp_path_factory.mktemp("three")
    return [deploy(what, folder / what) for what in ("embedding", "images", "own")]


def test_the_schema_of_the_fast_tests_is_kserves_own():
    assert json.loads(SCHEMA.read_text(encoding="utf-8")) == ask_kserve("schema")


def test_three_manifests_pass(three, tmp_path, record_property):
    manifests = [one.manifest for one in three]
    assert [list(manifest["spec"]["predictor"]).count("model") for manifest in manifests] == [1, 0, 1]
    assert judged(manifests, tmp_path) == [None, None, None]
    assert [faults(manifest) for manifest in manifests] == [[], [], []]
    for one in three:
        record_property(f"resources of {one.name}", json.dumps(one.container["resources"]["limits"]))
    record_property("judged by", ", ".join(PACKAGES))


def test_every_wrong_field_fails(three, tmp_path, record_property):
    wrong = [pair for one in three for pair in mutated(one.manifest)]
    verdicts = judged([manifest for _, manifest in wrong], tmp_path)
    assert [what for (what, _), verdict in zip(wrong, verdicts, strict=True) if verdict is None] == []
    assert len(wrong) > 300
    record_property("wrong manifests refused", len(wrong))
