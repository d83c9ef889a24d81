"""The verbs ``lint`` and ``effective``."""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tsbatch.configuration.server_properties import ServerProperties
from tsbatch.errors import UsageError
from tsbatch.system import console

if TYPE_CHECKING:
    from tsbatch.configuration.effective_settings import Setting
    from tsbatch.lint.archive_file import ArchiveFile
    from tsbatch.lint.documents import Machine
    from tsbatch.lint.findings import Finding

PANEL = "Develop"
SCHEMA = 1

As_Json = Annotated[bool, typer.Option("--json", help="One JSON object instead of text.")]
Cores = Annotated[
    int | None, typer.Option(min=1, help="Cores of the machine that will serve; those of this one when left out.")
]


class Format(str, Enum):
    """How ``lint`` writes its findings."""

    TEXT = "text"
    SARIF = "sarif"
    GITHUB = "github"


def register(app: typer.Typer) -> None:
    """Adds the verbs to the command line."""
    app.command("lint", rich_help_panel=PANEL)(lint_command)
    app.command("effective", rich_help_panel=PANEL)(effective_command)


def lint_command(
    paths: Annotated[
        list[Path] | None,
        typer.Argument(
            help="config.properties, model-config.yaml, handler modules, archives, metrics.yaml, requirements.txt, or "
            "folders with them; what is given together is also checked together.",
            show_default=False,
        ),
    ] = None,
    fix: Annotated[bool, typer.Option("--fix", help="Write the replacements that are safe.")] = False,
    ignore: Annotated[list[str] | None, typer.Option(help="A rule not to apply; may be repeated.")] = None,
    form: Annotated[Format, typer.Option("--format", help="How the findings are written.")] = Format.TEXT,
    rules: Annotated[bool, typer.Option("--rules", help="List the rules and stop.")] = False,
    cores: Cores = None,
    as_json: As_Json = False,
) -> None:
    """Say what TorchServe will really do with these files; exit code 1 when there are errors or warnings."""
    if rules:
        _list_rules(as_json=as_json)
        return
    if not paths:
        raise UsageError("lint needs files or folders to look at; tsbatch lint . takes this folder")
    from tsbatch.lint.findings import COUNTED
    from tsbatch.lint.run import lint

    machine = _machine(cores)
    found = lint(paths, machine=machine, ignore=ignore or [])
    fixed: list[Finding] = []
    while fix and (done := _fix(found)):
        fixed += done
        found = lint(paths, machine=machine, ignore=ignore or [])
    _show(found, fixed, form, as_json=as_json)
    if any(finding.severity in COUNTED for finding in found):
        raise typer.Exit(1)


def effective_command(
    config: Annotated[Path, typer.Argument(help="The server's config.properties.", show_default=False)],
    archives: Annotated[
        list[str] | None,
        typer.Argument(
            help="Archives, as FILE or NAME=FILE; those of load_models in the model store when left out.",
            show_default=False,
        ),
    ] = None,
    model_store: Annotated[
        Path | None, typer.Option(help="The model store; the one in config.properties when left out.")
    ] = None,
    api: Annotated[
        list[str] | None,
        typer.Option(
            help="A parameter of POST /models, as batch_size=8: the models are registered, not loaded at start."
        ),
    ] = None,
    cores: Cores = None,
    gpus: Annotated[int, typer.Option(min=0, help="GPUs of the machine that will serve.")] = 0,
    as_json: As_Json = False,
) -> None:
    """Print every setting of each model with the value that will hold and the layer it comes from."""
    from tsbatch.configuration.effective_settings import Deployment, effective
    from tsbatch.lint.rules.cross_file import loaded_at_start

    if not config.is_file():
        raise UsageError(f"{config}: there is no such file; expected the server's config.properties")
    properties = ServerProperties.read(config)
    if "model_snapshot" in properties:
        raise UsageError(
            f"{config}: model_snapshot restores a snapshot and ignores all else; remove it to see the layers"
        )
    machine, parameters = _machine(cores), _parameters(api)
    told = []
    for archive in _archives(archives or [], properties, model_store, machine):
        loaded = api is None and loaded_at_start(archive, properties.get("load_models", ""))
        model = Deployment(
            name=archive.model,
            version=archive.version,
            config=archive.config(),
            properties=properties,
            api=None if loaded else parameters,
            cores=machine.cores,
            gpus=gpus,
        )
        told.append((archive, loaded, effective(model)))
    _tell(told, as_json=as_json)


def _machine(cores: int | None) -> Machine:
    from tsbatch.lint.documents import Machine

    return Machine() if cores is None else Machine(cores=cores)


def _fix(found: Sequence[Finding]) -> Sequence[Finding]:
    from tsbatch.lint.fixing import fix

    return fix(found)


def _show(found: Sequence[Finding], fixed: Sequence[Finding], form: Format, *, as_json: bool) -> None:
    from tsbatch.lint import output

    if as_json:
        findings = [finding.as_json() for finding in found]
        console.emit_json({"schema": SCHEMA, "findings": findings, "fixed": [finding.as_json() for finding in fixed]})
        return
    if form is Format.SARIF:
        console.emit_json(output.render_sarif(found))
        return
    for line in output.render_github(found) if form is Format.GITHUB else output.render_text(found):
        typer.echo(line)
    for finding in fixed:
        console.say(f"fixed {finding.file}:{finding.line}: {finding.message} [{finding.rule}]")
    console.say(output.render_summary(found))


def _list_rules(*, as_json: bool) -> None:
    from tsbatch.lint.registry import all_rules

    rules = all_rules().values()
    if as_json:
        told = [
            {"id": rule.id, "severity": rule.severity, "title": rule.title, "explanation": rule.explanation}
            for rule in rules
        ]
        console.emit_json({"schema": SCHEMA, "rules": told})
    else:
        console.table(["rule", "severity", "finds"], [(rule.id, rule.severity, rule.title) for rule in rules])


def _parameters(given: Sequence[str] | None) -> dict[str, str]:
    pairs = [text.partition("=") for text in given or []]
    for name, equals, value in pairs:
        if not (name and equals and value):
            raise UsageError(f"--api {name}{equals}{value}: expected NAME=VALUE, as batch_size=8")
    return {name: value for name, _, value in pairs}


def _archives(
    given: Sequence[str], properties: ServerProperties, model_store: Path | None, machine: Machine
) -> list[ArchiveFile]:
    from tsbatch.archive.model_store import ModelSource, sources_in, sources_of
    from tsbatch.lint.archive_file import read_archive

    store = model_store or (Path(properties["model_store"]) if "model_store" in properties else None)
    if store is not None and not store.is_dir() and (model_store or not given):
        raise UsageError(f"{store}: there is no such model store; give it with --model-store, or name the archives")
    if given:
        sources = [ModelSource.parse(text) for text in given]
    elif store is None:
        raise UsageError("which models? Name the archives, or give --model-store")
    else:
        named = properties.get("load_models", "")
        sources = sources_of(named, store) if named.strip() else sources_in(store)
    found = [read_archive(source.path, str(source.path), machine, source.alias) for source in sources]
    for archive in found:
        if archive.problem:
            raise UsageError(f"{archive.path} is not a model archive: {archive.problem}")
    return found


def _tell(told: Sequence[tuple[ArchiveFile, bool, Sequence[Setting]]], *, as_json: bool) -> None:
    how = {True: "loaded at the start", False: "registered by API"}
    if as_json:
        models: list[dict[str, Any]] = [
            {
                "model": archive.model,
                "version": archive.version,
                "archive": str(archive.where),
                "loaded_at_start": loaded,
                "settings": {
                    each.name: {"value": each.value, "layer": each.layer, "remark": each.remark} for each in settings
                },
            }
            for archive, loaded, settings in told
        ]
        console.emit_json({"schema": SCHEMA, "models": models})
        return
    for archive, loaded, settings in told:
        rows = [(each.name, each.value, each.layer, each.remark) for each in settings]
        title = f"{archive.model} {archive.version} ({how[loaded]})"
        console.table(["setting", "value", "from", ""], rows, title=title)
