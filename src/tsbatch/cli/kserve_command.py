"""The verb ``kserve``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tsbatch.errors import UsageError

if TYPE_CHECKING:
    from tsbatch.kserve.archive_facts import Facts
    from tsbatch.kserve.inference_service import ServiceOptions
    from tsbatch.kserve.pod_resources import Resources
    from tsbatch.kserve.scaling import Scaling

PANEL = "Server"
SCHEMA = 1
TRIED = "no cluster has seen it: it was compared with the models of the package kserve 0.21.0 (docs/kserve.md)"


def register(app: typer.Typer) -> None:
    """Adds the verb to the command line."""
    app.command("kserve", rich_help_panel=PANEL)(kserve_command)


def kserve_command(
    mar: Annotated[Path, typer.Argument(help="The archive.")],
    storage_uri: Annotated[
        str | None,
        typer.Option(help="Where you copy the folder storage/ to: s3://…, gs://…, pvc://…; left out: into the image."),
    ] = None,
    image: Annotated[
        str | None, typer.Option(help="The name of the image that you build and push (NAME:VERSION).")
    ] = None,
    check: Annotated[
        Path | None,
        typer.Option(help="A saved `tsbatch check ARCHIVE --json`, for the resources; made now when left out."),
    ] = None,
    name: Annotated[str | None, typer.Option(help="Of the InferenceService (the model's).")] = None,
    namespace: Annotated[str | None, typer.Option(help="Of the InferenceService.")] = None,
    replicas: Annotated[str, typer.Option(help="Pods: a number, or MIN:MAX for KEDA to choose from.")] = "1",
    prometheus: Annotated[str | None, typer.Option(help="The address at which KEDA asks Prometheus.")] = None,
    busy: Annotated[
        float, typer.Option(min=0.05, max=1.0, help="Share of a pod's workers that may be busy on average.")
    ] = 0.7,
    gpus: Annotated[int | None, typer.Option(min=0, help="GPUs of a pod (1 when it was checked with one).")] = None,
    output: Annotated[Path | None, typer.Option("--output", "-o", help="The folder to write (NAME-kserve).")] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace the folder that is there.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object.")] = False,
) -> None:
    """Write an InferenceService of KServe for an archive, and what its pods need: storage, Dockerfile, settings."""
    from tsbatch.archive.model_store import ModelSource
    from tsbatch.kserve import inference_service, output_folder, pod_resources, scaling
    from tsbatch.kserve.archive_facts import facts_of, read_check
    from tsbatch.system import console

    source = ModelSource.parse(mar)
    chosen = name or inference_service.name_for(source.name)
    wanted = inference_service.ServiceOptions(
        name=chosen,
        image=image or f"{chosen}:{source.version or '1.0'}",
        namespace=namespace,
        storage_uri=storage_uri,
    )
    pods = scaling.Scaling.parse(replicas, prometheus=prometheus, busy=busy, namespace=namespace)
    target = output or Path(f"{chosen}-kserve")
    if target.exists() and not force:
        raise UsageError(f"{target} exists; replace it with --force, or choose another --output")
    facts = facts_of(mar, read_check(check) if check else _checked(mar))
    asked = pod_resources.resources(facts, gpus=gpus)
    manifest = inference_service.inference_service(facts, wanted, asked, pods)
    files = output_folder.write(target, facts, manifest, force=force)
    if as_json:
        told = {"folder": target.absolute(), "files": files, "inference_service": manifest, "reason": asked.reason}
        console.emit_json({"schema": SCHEMA, "kind": "kserve", **told, "notes": [*_notes(facts, wanted, pods), TRIED]})
    else:
        _show(target, facts, wanted, asked, pods)


def _checked(mar: Path) -> dict[str, Any]:
    from tsbatch.check.run import check
    from tsbatch.system.console import telling
    from tsbatch.system.signals import end_on_signals

    with end_on_signals(), telling() as tell:
        return check(mar, on_progress=tell).as_json()


def _show(folder: Path, facts: Facts, wanted: ServiceOptions, asked: Resources, pods: Scaling) -> None:
    from tsbatch.kserve.pod_resources import MEBI
    from tsbatch.kserve.scaling import query, target
    from tsbatch.system import console

    rows = [
        ("inference service", wanted.name),
        ("pods", f"{pods.min_pods} to {pods.max_pods}" if pods.automatic else str(pods.min_pods)),
        ("cpu", f"{asked.cpu}  ({facts.workers} × {facts.threads} threads)"),
        ("memory", f"{asked.memory // MEBI}Mi  ({asked.reason})"),
        *([("gpus", str(asked.gpus))] if asked.gpus else []),
        *([("scaled by", f"{query(facts, pods)} over {target(facts, pods):g}")] if pods.automatic else []),
    ]
    for what, value in rows:
        typer.echo(f"{what:18} {' '.join(value.split())}")
    for note in [*_notes(facts, wanted, pods), TRIED]:
        console.say(f"note: {note}")
    typer.echo("next:")
    typer.echo(f"  docker build -t {wanted.image} {folder} && docker push {wanted.image}")
    if wanted.storage_uri is not None:
        typer.echo(f"  copy what is in {folder}/storage to {wanted.storage_uri}")
    typer.echo(f"  kubectl apply -f {folder}/inference-service.yaml")


def _notes(facts: Facts, wanted: ServiceOptions, pods: Scaling) -> list[str]:
    found = []
    if not pods.automatic:
        found.append("the number of pods is fixed; --replicas MIN:MAX --prometheus URL lets KEDA choose it")
    elif not facts.emits_counters:
        found.append(
            "the handler emits none of tsbatch's counters, so the pods are scaled by TorchServe's own: the number of "
            "requests that wait"
        )
    if pods.automatic and wanted.namespace:
        found.append("the query asks for the label namespace, which Prometheus must give to what it finds in pods")
    if facts.requirements:
        found.append("each pod installs the archive's requirements when it starts; better put them into the image")
    return found
