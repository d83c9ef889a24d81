"""The InferenceService (serving.kserve.io/v1beta1), as the mapping that becomes YAML or JSON.

Two forms. With a storage URI it is a model of KServe's TorchServe runtime, whose image is replaced: the stock one has
Python 3.9, and tsbatch needs 3.10. Without, the archive lies in the image, which is then a custom predictor.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from tsbatch.errors import UsageError
from tsbatch.kserve import health_probes
from tsbatch.kserve.archive_facts import Facts
from tsbatch.kserve.pod_resources import Resources
from tsbatch.kserve.scaling import Scaling, query, target
from tsbatch.kserve.server_config import INFERENCE_PORT, METRICS_PORT, MORE_ARGUMENTS, RUNTIME_COMMAND

NAME_RULE = re.compile(r"[a-z]([-a-z0-9]*[a-z0-9])?")
"""KServe's own (pkg/apis/serving/v1beta1/inference_service_validation.go)."""

LONGEST_NAME = 53
"""Characters. The Service gets ``-predictor`` behind it, and the name of a Service has at most 63."""

NAMESPACE_RULE = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?")
URI_RULE = re.compile(r"[a-z][a-z0-9+.-]*://.+")
RUNTIME = "kserve-torchserve"
CONTAINER = "kserve-container"


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """What somebody asked for.

    Attributes:
        name: of the InferenceService.
        image: of its pods.
        namespace: None for the one that kubectl is set to.
        storage_uri: where ``storage/`` was copied to; None when the archive lies in the image.

    Raises:
        UsageError: one of them is not of the form that Kubernetes or KServe takes.
    """

    name: str
    image: str
    namespace: str | None = None
    storage_uri: str | None = None

    def __post_init__(self) -> None:
        if not NAME_RULE.fullmatch(self.name) or len(self.name) > LONGEST_NAME:
            raise UsageError(
                f"--name {self.name!r}: KServe takes small letters, digits and '-', at most {LONGEST_NAME}, and the "
                "first must be a letter"
            )
        if self.namespace is not None and not NAMESPACE_RULE.fullmatch(self.namespace):
            raise UsageError(f"--namespace {self.namespace!r}: Kubernetes takes small letters, digits and '-'")
        if self.storage_uri is not None and not URI_RULE.fullmatch(self.storage_uri):
            raise UsageError(
                f"--storage-uri {self.storage_uri!r}: expected SCHEME://PLACE as KServe's storage initializer reads "
                "it: s3://bucket/folder, gs://bucket/folder, pvc://claim/folder, https://host/file.tar.gz"
            )
        if not self.image or any(letter.isspace() for letter in self.image):
            raise UsageError(f"--image {self.image!r}: expected a name like registry/embed:1.0")


def name_for(model: str) -> str:
    """A model's name as KServe would take it."""
    return re.sub(r"[^a-z0-9]+", "-", model.lower()).strip("-")[:LONGEST_NAME].strip("-")


def inference_service(facts: Facts, wanted: Wanted, resources: Resources, scaling: Scaling) -> dict[str, Any]:
    """The whole manifest."""
    # The one mode in which KEDA scales; Knative's own autoscaler knows no metric of ours.
    annotations = {"serving.kserve.io/deploymentMode": "Standard"}
    if scaling.automatic:
        annotations["serving.kserve.io/autoscalerClass"] = "keda"
    metadata: dict[str, Any] = {"name": wanted.name, "annotations": annotations}
    if wanted.namespace is not None:
        metadata["namespace"] = wanted.namespace
    return {
        "apiVersion": "serving.kserve.io/v1beta1",
        "kind": "InferenceService",
        "metadata": metadata,
        "spec": {"predictor": _predictor(facts, wanted, resources, scaling)},
    }


def _predictor(facts: Facts, wanted: Wanted, resources: Resources, scaling: Scaling) -> dict[str, Any]:
    found: dict[str, Any] = {
        "minReplicas": scaling.least,
        "maxReplicas": scaling.most,
        # The gateway's own limit of a request is 60 s.
        "timeout": facts.response_timeout,
        "terminationGracePeriodSeconds": health_probes.drain(facts) + health_probes.TO_END,
        "annotations": {
            "prometheus.io/scrape": "true",
            "prometheus.io/port": str(METRICS_PORT),
            "prometheus.io/path": "/metrics",
            # With "true" KServe would write its own port over ours.
            "serving.kserve.io/enable-prometheus-scraping": "false",
        },
    }
    if scaling.automatic:
        found["autoScaling"] = {"metrics": [_metric(facts, scaling)]}
    container = _container(facts, wanted, resources)
    if wanted.storage_uri is None:
        arguments = [*RUNTIME_COMMAND, *MORE_ARGUMENTS]
        found["containers"] = [{"name": CONTAINER, **container, "args": arguments}]
    else:
        found["model"] = {
            "modelFormat": {"name": "pytorch"},
            "runtime": RUNTIME,
            "protocolVersion": "v2",
            "storageUri": wanted.storage_uri,
            **container,
            "args": list(MORE_ARGUMENTS),
        }
    return found


def _container(facts: Facts, wanted: Wanted, resources: Resources) -> dict[str, Any]:
    return {
        "image": wanted.image,
        "ports": [
            {"name": "http1", "containerPort": INFERENCE_PORT, "protocol": "TCP"},
            {"name": "metrics", "containerPort": METRICS_PORT, "protocol": "TCP"},
        ],
        "resources": resources.as_kubernetes(),
        **health_probes.probes(facts),
        "lifecycle": health_probes.ending(facts),
    }


def _metric(facts: Facts, scaling: Scaling) -> dict[str, Any]:
    return {
        "type": "External",
        "external": {
            "metric": {
                "backend": "prometheus",
                "serverAddress": scaling.prometheus,
                "query": query(facts, scaling),
            },
            "target": {"type": "Value", "value": f"{target(facts, scaling):g}"},
        },
    }
