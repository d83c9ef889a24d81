"""The commands ``lint`` and ``effective``."""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer import Argument, Option

from tsbatch.cli import options
from tsbatch.cli.exit_codes import FINDINGS
from tsbatch.configuration.server_properties import ServerProperties
from tsbatch.errors import UsageError
from tsbatch.system import console

if TYPE_CHECKING:
    from tsbatch.configuration.effective_settings import Setting
    from tsbatch.lint.archive_file import ArchiveFile
    from tsbatch.lint.documents import Machine
    from tsbatch.lint.findings import Finding

SCHEMA = 1

Cores = Annotated[int | None, Option(min=1, help="CPU cores of the serving machine; those of this machine if omitted.")]


class Format(str, Enum):
    """Output format of ``lint``."""

    TEXT = "text"
    SARIF = "sarif"
    GITHUB = "github"


def lint_command(
    paths: Annotated[
        list[Path] | None,
        Argument(
            help="config.properties, model-config.yaml, handler modules, archives, metrics.yaml, requirements.txt, or "
            "folders with such files. Files given together are also checked against each other.",
            show_default=False,
        ),
    ] = None,
    fix: Annotated[bool, Option("--fix", help="Apply the safe fixes to the files.")] = False,
    ignore: Annotated[list[str] | None, Option(help="Rule to ignore; can be repeated.")] = None,
    form: Annotated[Format, Option("--format", help="Output format of the findings.")] = Format.TEXT,
    rules: Annotated[bool, Option("--rules", help="List the rules and exit.")] = False,
    cores: Cores = None,
    as_json: options.Json = False,
) -> None:
    """Show how TorchServe will actually interpret these files; exit code 1 if there are errors or warnings."""
    if rules:
        _list_rules(as_json=as_json)
        return
    if not paths:
        raise UsageError("no files to check; for the current folder run: tsbatch lint .")
    from tsbatch.lint.findings import COUNTED
    from tsbatch.lint.fixing import fix as apply_fixes
    from tsbatch.lint.run import lint

    machine = _machine(cores)
    found = lint(paths, machine=machine, ignore=ignore or [])
    fixed: list[Finding] = []
    while fix and (done := apply_fixes(found)):
        fixed += done
        found = lint(paths, machine=machine, ignore=ignore or [])
    _show(found, fixed, form, as_json=as_json)
    if any(finding.severity in COUNTED for finding in found):
        raise typer.Exit(FINDINGS)


def effective_command(
    config: Annotated[Path, Argument(help="The server's config.properties.", show_default=False)],
    archives: Annotated[
        list[str] | None,
        Argument(
            help="Archives, as FILE or NAME=FILE; by default those that load_models selects from the model store.",
            show_default=False,
        ),
    ] = None,
    model_store: Annotated[Path | None, Option(help="Model store; the one in config.properties if omitted.")] = None,
    api: Annotated[
        list[str] | None,
        Option(help="Parameter of POST /models, such as batch_size=8: show models registered by API, not at startup."),
    ] = None,
    cores: Cores = None,
    gpus: Annotated[int, Option(min=0, help="GPUs of the serving machine.")] = 0,
    as_json: options.Json = False,
) -> None:
    """Print the effective value of every setting of each model and the layer it comes from."""
    from tsbatch.configuration.effective_settings import Deployment, effective
    from tsbatch.lint.rules.cross_file import loaded_at_start

    if not config.is_file():
        raise UsageError(f"{config}: no such file; expected the server's config.properties")
    properties = ServerProperties.read(config)
    if "model_snapshot" in properties:
        raise UsageError(
            f"{config}: model_snapshot restores a snapshot and overrides all else; remove it to see the layers"
        )
    machine, parameters = _machine(cores), _parameters(api)
    found = []
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
        found.append((archive, loaded, effective(model)))
    _show_settings(found, as_json=as_json)


def _machine(cores: int | None) -> Machine:
    from tsbatch.lint.documents import Machine

    return Machine() if cores is None else Machine(cores=cores)


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
        listed = [
            {"id": rule.id, "severity": rule.severity, "title": rule.title, "explanation": rule.explanation}
            for rule in rules
        ]
        console.emit_json({"schema": SCHEMA, "rules": listed})
    else:
        console.table(["rule", "severity", "finds"], [(rule.id, rule.severity, rule.title) for rule in rules])


def _parameters(given: Sequence[str] | None) -> dict[str, str]:
    pairs = [text.partition("=") for text in given or []]
    for name, equals, value in pairs:
        if not (name and equals and value):
            raise UsageError(f"--api {name}{equals}{value}: expected NAME=VALUE, such as batch_size=8")
    return {name: value for name, _, value in pairs}


def _archives(
    given: Sequence[str], properties: ServerProperties, model_store: Path | None, machine: Machine
) -> list[ArchiveFile]:
    from tsbatch.archive.model_store import ModelSource, sources_in, sources_of
    from tsbatch.lint.archive_file import read_archive

    store = model_store or (Path(properties["model_store"]) if "model_store" in properties else None)
    if store is not None and not store.is_dir() and (model_store or not given):
        raise UsageError(f"{store}: no such model store; give another --model-store, or name the archives")
    if given:
        sources = [ModelSource.parse(text) for text in given]
    elif store is None:
        raise UsageError("no models to show; name the archives, or give --model-store")
    else:
        named = properties.get("load_models", "")
        sources = sources_of(named, store) if named.strip() else sources_in(store)
    found = [read_archive(source.path, str(source.path), machine, source.alias) for source in sources]
    for archive in found:
        if archive.problem:
            raise UsageError(f"{archive.path} is not a model archive: {archive.problem}")
    return found


def _show_settings(found: Sequence[tuple[ArchiveFile, bool, Sequence[Setting]]], *, as_json: bool) -> None:
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
            for archive, loaded, settings in found
        ]
        console.emit_json({"schema": SCHEMA, "models": models})
        return
    for archive, loaded, settings in found:
        rows = [(each.name, each.value, each.layer, each.remark) for each in settings]
        title = f"{archive.model} {archive.version} ({'loaded at startup' if loaded else 'registered by API'})"
        console.table(["setting", "value", "from", ""], rows, title=title)
