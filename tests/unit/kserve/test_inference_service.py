"""The InferenceService, judged by the fields of KServe's own models."""

from __future__ import annotations

import pytest

from tests.dashboards import names_in
from tests.kserve import RUNTIME_ARGS, check_of, faults, foreign_archive, mutated, own_archive
from tests.unit.test_dashboards import declared
from tsbatch.errors import UsageError
from tsbatch.kserve.archive_facts import facts_of
from tsbatch.kserve.inference_service import MAX_NAME_LENGTH, ServiceOptions, inference_service, name_for
from tsbatch.kserve.pod_resources import resources
from tsbatch.kserve.scaling import Scaling

STORED = ServiceOptions(name="m", image="registry/m:1", storage_uri="s3://bucket/m", namespace="ml")
IN_IMAGE = ServiceOptions(name="m", image="m:1")
GROWS = Scaling(1, 4, "http://prometheus:9090", namespace="ml")


@pytest.fixture(scope="module")
def facts(tmp_path_factory):
    mar = own_archive(tmp_path_factory.mktemp("own"))
    return facts_of(mar, check_of(mar, "m"))


@pytest.fixture(scope="module")
def foreign(tmp_path_factory):
    mar = foreign_archive(tmp_path_factory.mktemp("foreign"))
    return facts_of(mar, check_of(mar, "foreign", ours=False, second=None))


def manifest_of(facts, wanted=STORED, scaling=GROWS, gpus=None):
    return inference_service(facts, wanted, resources(facts, gpus=gpus), scaling)


@pytest.mark.parametrize("wanted", [STORED, IN_IMAGE])
@pytest.mark.parametrize("scaling", [GROWS, Scaling(2, 2)])
@pytest.mark.parametrize("gpus", [None, 2])
def test_every_field_exists(facts, foreign, wanted, scaling, gpus):
    for one in (facts, foreign):
        assert faults(manifest_of(one, wanted, scaling, gpus)) == []


@pytest.mark.parametrize("wanted", [STORED, IN_IMAGE])
def test_each_wrong_field_is_found(facts, wanted):
    manifest = manifest_of(facts, wanted)
    wrong = list(mutated(manifest))
    assert len(wrong) > 100
    missed = [what for what, broken in wrong if not _found(broken)]
    assert missed == []


def _found(manifest):
    try:
        return bool(faults(manifest))
    except (KeyError, TypeError):  # a rule of the webhook looks for a field that is not there any more
        return True


def test_the_archive_at_the_storage_uri_runs_in_the_torchserve_runtime(facts):
    model = manifest_of(facts)["spec"]["predictor"]["model"]
    assert model["modelFormat"] == {"name": "pytorch"}
    assert (model["runtime"], model["storageUri"]) == ("kserve-torchserve", "s3://bucket/m")
    # KServe appends them to the runtime's.
    assert model["args"] == ["--foreground", "--ncs"]


def test_the_archive_in_the_image_is_a_custom_predictor(facts):
    [container] = manifest_of(facts, IN_IMAGE)["spec"]["predictor"]["containers"]
    assert container["name"] == "kserve-container"
    assert container["args"] == [*RUNTIME_ARGS, "--foreground", "--ncs"]


def test_where_and_how_long(facts):
    manifest = manifest_of(facts)
    assert manifest["metadata"]["namespace"] == "ml"
    assert "namespace" not in manifest_of(facts, IN_IMAGE)["metadata"]
    assert manifest["spec"]["predictor"]["timeout"] == 90  # responseTimeout


def metric_of(manifest):
    [metric] = manifest["spec"]["predictor"]["autoScaling"]["metrics"]
    return metric["external"]


def test_scaling_asks_for_metrics_that_are_emitted(facts, foreign):
    for one, label in ((facts, "ModelName"), (foreign, "model_name")):
        query = metric_of(manifest_of(one))["metric"]["query"]
        names = names_in(query)
        assert names
        assert names <= declared().keys()
        assert all(label in declared()[name] for name in names)
        assert query.count(f'{{{label}="{one.name}", namespace="ml"}}') == len(names)
    assert names == {"ts_queue_latency_microseconds"}


def test_a_fixed_number_of_pods_has_no_autoscaling(facts):
    manifest = manifest_of(facts, scaling=Scaling(2, 2))
    predictor = manifest["spec"]["predictor"]
    assert (predictor["minReplicas"], predictor["maxReplicas"]) == (2, 2)
    assert "autoScaling" not in predictor
    assert "serving.kserve.io/autoscalerClass" not in manifest["metadata"]["annotations"]


@pytest.mark.parametrize(
    "wrong, message",
    [
        ({"name": "Embed"}, "--name 'Embed'"),
        ({"name": "e" * (MAX_NAME_LENGTH + 1)}, "at most 53"),
        ({"namespace": "my space"}, "--namespace 'my space'"),
        ({"storage_uri": "/models"}, "expected a URI that KServe"),
        ({"storage_uri": "s3://"}, "expected a URI that KServe"),
        ({"image": "a b"}, "--image 'a b'"),
    ],
)
def test_what_kubernetes_would_refuse_is_refused(wrong, message):
    with pytest.raises(UsageError, match=message):
        ServiceOptions(**{"name": "m", "image": "m:1", **wrong})


@pytest.mark.parametrize("model, name", [("tiny_Embed", "tiny-embed"), ("a.b__c", "a-b-c"), ("x" * 60, "x" * 53)])
def test_a_models_name_becomes_one_for_kserve(model, name):
    assert name_for(model) == name
