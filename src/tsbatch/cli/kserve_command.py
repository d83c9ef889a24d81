"""The command ``kserve``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer import Argument, Option

from tsbatch.cli import options
from tsbatch.errors import UsageError

if TYPE_CHECKING:
    from tsbatch.kserve.archive_facts import Facts
    from tsbatch.kserve.inference_service import ServiceOptions
    from tsbatch.kserve.pod_resources import Resources
    from tsbatch.kserve.scaling import Scaling

SCHEMA = 1
UNTESTED = "not tested on a cluster, only against the models of the package kserve 0.21.0 (docs/kserve.md)"


def kserve_command(
    mar: Annotated[Path, Argument(help="The archive.")],
    storage_uri: Annotated[
        str | None,
        Option(
            help="Address where you will put the contents of storage/: s3://…, gs://…, pvc://…; if omitted, the image"
            " contains the model."
        ),
    ] = None,
    image: Annotated[
        str | None, Option(help="Name of the image that you will build and push (default: NAME:VERSION).")
    ] = None,
    check: Annotated[
        Path | None,
        Option(help="Saved output of `tsbatch check ARCHIVE --json`; if omitted, the check runs now."),
    ] = None,
    name: Annotated[str | None, Option(help="Name of the InferenceService (default: the model's name).")] = None,
    namespace: Annotated[str | None, Option(help="Namespace of the InferenceService.")] = None,
    replicas: Annotated[str, Option(help="Number of pods, or MIN:MAX for autoscaling with KEDA.")] = "1",
    prometheus: Annotated[str | None, Option(help="Address of the Prometheus that KEDA queries.")] = None,
    busy: Annotated[
        float, Option(min=0.05, max=1.0, help="Share of a pod's workers that may be busy on average.")
    ] = 0.7,
    gpus: Annotated[
        int | None, Option(min=0, help="GPUs per pod (default: 1 if the archive was checked with one).")
    ] = None,
    output: Annotated[Path | None, Option("--output", "-o", help="Folder to write (default: NAME-kserve).")] = None,
    force: Annotated[bool, Option("--force", help="Replace an existing folder.")] = False,
    as_json: options.Json = False,
) -> None:
    """Write a KServe InferenceService for an archive, with the storage folder, Dockerfile and settings of its pods."""
    from tsbatch.archive.model_store import ModelSource
    from tsbatch.kserve import inference_service, output_folder, pod_resources, scaling
    from tsbatch.kserve.archive_facts import facts_of, read_check
    from tsbatch.system import console

    source = ModelSource.parse(mar)
    chosen = name or inference_service.name_for(source.name)
    image = image or f"{chosen}:{source.version or '1.0'}"
    wanted = inference_service.ServiceOptions(name=chosen, image=image, namespace=namespace, storage_uri=storage_uri)
    pods = scaling.Scaling.parse(replicas, prometheus=prometheus, busy=busy, namespace=namespace)
    target = output or Path(f"{chosen}-kserve")
    if target.exists() and not force:
        raise UsageError(f"{target} exists; replace it with --force, or choose another --output")
    facts = facts_of(mar, read_check(check) if check else _checked(mar))
    requests = pod_resources.resources(facts, gpus=gpus)
    manifest = inference_service.inference_service(facts, wanted, requests, pods)
    files = output_folder.write(target, facts, manifest, force=force)
    if as_json:
        about = {"folder": target.absolute(), "files": files, "inference_service": manifest, "reason": requests.reason}
        notes = [*_notes(facts, wanted, pods), UNTESTED]
        console.emit_json({"schema": SCHEMA, "kind": "kserve", **about, "notes": notes})
    else:
        _show(target, facts, wanted, requests, pods)


def _checked(mar: Path) -> dict[str, Any]:
    from tsbatch.check.run import check
    from tsbatch.system.console import telling
    from tsbatch.system.signals import end_on_signals

    with end_on_signals(), telling() as tell:
        return check(mar, on_progress=tell).as_json()


def _show(folder: Path, facts: Facts, wanted: ServiceOptions, requests: Resources, pods: Scaling) -> None:
    from tsbatch.kserve.pod_resources import MEBI
    from tsbatch.kserve.scaling import query, target
    from tsbatch.system import console

    rows = [
        ("inference service", wanted.name),
        ("pods", f"{pods.min_pods} to {pods.max_pods}" if pods.automatic else str(pods.min_pods)),
        ("cpu", f"{requests.cpu}  ({facts.workers} × {facts.threads} threads)"),
        ("memory", f"{requests.memory // MEBI}Mi  ({requests.reason})"),
        *([("gpus", str(requests.gpus))] if requests.gpus else []),
        *([("scaled by", f"{query(facts, pods)} over {target(facts, pods):g}")] if pods.automatic else []),
    ]
    for label, value in rows:
        typer.echo(f"{label:18} {' '.join(value.split())}")
    for note in [*_notes(facts, wanted, pods), UNTESTED]:
        console.say(f"note: {note}")
    typer.echo("next:")
    typer.echo(f"  docker build -t {wanted.image} {folder} && docker push {wanted.image}")
    if wanted.storage_uri is not None:
        typer.echo(f"  copy the content of {folder}/storage to {wanted.storage_uri}")
    typer.echo(f"  kubectl apply -f {folder}/inference-service.yaml")


def _notes(facts: Facts, wanted: ServiceOptions, pods: Scaling) -> list[str]:
    found = []
    if not pods.automatic:
        found.append("the number of pods is fixed; --replicas MIN:MAX --prometheus URL lets KEDA choose it")
    elif not facts.emits_counters:
        found.append(
            "the handler emits none of tsbatch's counters, so the pods are scaled by TorchServe's own, the number of "
            "waiting requests"
        )
    if pods.automatic and wanted.namespace:
        found.append("the query uses the label namespace, which Prometheus must add to the metrics of pods")
    if facts.requirements:
        found.append("each pod installs the archive's requirements when it starts; better install them in the image")
    return found
