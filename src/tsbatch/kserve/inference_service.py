"""The InferenceService (serving.kserve.io/v1beta1) as a mapping, ready for YAML or JSON.

It has two forms. With a storage URI it is a model of KServe's TorchServe runtime with another image: the stock image
has Python 3.9, and tsbatch needs 3.10. Without one, the archive is in the image, which is then a custom predictor.
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
from tsbatch.kserve.server_config import EXTRA_ARGUMENTS, INFERENCE_PORT, METRICS_PORT, RUNTIME_COMMAND

NAME_RULE = re.compile(r"[a-z]([-a-z0-9]*[a-z0-9])?")
"""KServe's rule (pkg/apis/serving/v1beta1/inference_service_validation.go)."""

MAX_NAME_LENGTH = 53
"""Characters. The Service's name ends in ``-predictor`` and may have at most 63."""

NAMESPACE_RULE = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?")
URI_RULE = re.compile(r"[a-z][a-z0-9+.-]*://.+")
RUNTIME = "kserve-torchserve"
CONTAINER = "kserve-container"


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceOptions:
    """Options of the InferenceService.

    Attributes:
        name: its name.
        image: the image of its pods.
        namespace: its namespace; None for kubectl's current one.
        storage_uri: where ``storage/`` is copied to; None if the archive is in the image.

    Raises:
        UsageError: an option is not in the form that Kubernetes or KServe allows.
    """

    name: str
    image: str
    namespace: str | None = None
    storage_uri: str | None = None

    def __post_init__(self) -> None:
        if not NAME_RULE.fullmatch(self.name) or len(self.name) > MAX_NAME_LENGTH:
            raise UsageError(
                f"--name {self.name!r}: KServe allows at most {MAX_NAME_LENGTH} lower-case letters, digits and '-', "
                "starting with a letter"
            )
        if self.namespace is not None and not NAMESPACE_RULE.fullmatch(self.namespace):
            raise UsageError(f"--namespace {self.namespace!r}: Kubernetes allows lower-case letters, digits and '-'")
        if self.storage_uri is not None and not URI_RULE.fullmatch(self.storage_uri):
            raise UsageError(
                f"--storage-uri {self.storage_uri!r}: expected a URI that KServe's storage initializer can read, "
                "as s3://bucket/folder, gs://bucket/folder, pvc://claim/folder, https://host/file.tar.gz"
            )
        if not self.image or any(letter.isspace() for letter in self.image):
            raise UsageError(f"--image {self.image!r}: expected a name like registry/embed:1.0")


def name_for(model: str) -> str:
    """Convert a model's name to one that KServe allows."""
    return re.sub(r"[^a-z0-9]+", "-", model.lower()).strip("-")[:MAX_NAME_LENGTH].strip("-")


def inference_service(facts: Facts, options: ServiceOptions, resources: Resources, scaling: Scaling) -> dict[str, Any]:
    """Return the complete manifest."""
    # The only mode in which KEDA scales; Knative's autoscaler cannot use tsbatch's metrics.
    annotations = {"serving.kserve.io/deploymentMode": "Standard"}
    if scaling.automatic:
        annotations["serving.kserve.io/autoscalerClass"] = "keda"
    metadata: dict[str, Any] = {"name": options.name, "annotations": annotations}
    if options.namespace is not None:
        metadata["namespace"] = options.namespace
    return {
        "apiVersion": "serving.kserve.io/v1beta1",
        "kind": "InferenceService",
        "metadata": metadata,
        "spec": {"predictor": _predictor(facts, options, resources, scaling)},
    }


def _predictor(facts: Facts, options: ServiceOptions, resources: Resources, scaling: Scaling) -> dict[str, Any]:
    found: dict[str, Any] = {
        "minReplicas": scaling.min_pods,
        "maxReplicas": scaling.max_pods,
        # The gateway's default timeout is 60 s.
        "timeout": facts.response_timeout,
        "terminationGracePeriodSeconds": health_probes.drain(facts) + health_probes.SECONDS_TO_STOP,
        "annotations": {
            "prometheus.io/scrape": "true",
            "prometheus.io/port": str(METRICS_PORT),
            "prometheus.io/path": "/metrics",
            # With "true", KServe would overwrite the port above.
            "serving.kserve.io/enable-prometheus-scraping": "false",
        },
    }
    if scaling.automatic:
        found["autoScaling"] = {"metrics": [_metric(facts, scaling)]}
    container = _container(facts, options, resources)
    if options.storage_uri is None:
        arguments = [*RUNTIME_COMMAND, *EXTRA_ARGUMENTS]
        found["containers"] = [{"name": CONTAINER, **container, "args": arguments}]
    else:
        found["model"] = {
            "modelFormat": {"name": "pytorch"},
            "runtime": RUNTIME,
            "protocolVersion": "v2",
            "storageUri": options.storage_uri,
            **container,
            "args": list(EXTRA_ARGUMENTS),
        }
    return found


def _container(facts: Facts, options: ServiceOptions, resources: Resources) -> dict[str, Any]:
    return {
        "image": options.image,
        "ports": [
            {"name": "http1", "containerPort": INFERENCE_PORT, "protocol": "TCP"},
            {"name": "metrics", "containerPort": METRICS_PORT, "protocol": "TCP"},
        ],
        "resources": resources.as_kubernetes(),
        **health_probes.probes(facts),
        "lifecycle": health_probes.lifecycle(facts),
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
