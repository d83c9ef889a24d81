"""The command line: each command with its options, as typer understood them."""

from __future__ import annotations

import importlib
import inspect
import typing
from collections.abc import Callable, Iterator
from pathlib import PurePath
from typing import Any

from tests.surface import names

LIMITS = ("min", "max", "exists", "file_okay", "dir_okay")


def main() -> Callable[[list[str]], int]:
    """What the console script calls."""
    found: Callable[[list[str]], int] = names.entry_points("console_scripts")["tsbatch"].load()
    return found


def application() -> Any:
    """The typer application as a tree of commands."""
    import typer

    module = importlib.import_module(names.entry_points("console_scripts")["tsbatch"].load().__module__)
    return typer.main.get_command(getattr(module, names.INTERNAL["typer application"])())


def all_commands() -> dict[str, Any]:
    """Each command, by its words."""
    return {" ".join(words): described(command) for words, command in walked([], application())}


def walked(words: list[str], command: Any) -> Iterator[tuple[list[str], Any]]:
    """A command and those below it."""
    yield words or ["tsbatch"], command
    for name, below in sorted(getattr(command, "commands", {}).items()):
        yield from walked([*words, name], below)


def described(command: Any) -> dict[str, Any]:
    """Where it stands in the help, and its parameters; arguments in their order."""
    annotated = hints(command.callback)
    own = [one for one in command.params if one.name != "help"]
    arguments = [one for one in own if one.param_type_name == "argument"]
    options = [one for one in own if one.param_type_name == "option"]
    return {
        "panel": getattr(command, "rich_help_panel", None) or None,
        "hidden": command.hidden,
        "help_by": sorted(command.context_settings.get("help_option_names", [])),
        "arguments": [{"name": one.name, **parameter(one, annotated)} for one in arguments],
        "options": {" ".join(spelled(one)): parameter(one, annotated) for one in sorted(options, key=spelled)},
        "commands": sorted(getattr(command, "commands", {})),
    }


def spelled(option: Any) -> list[str]:
    """All its spellings, the long ones first."""
    return sorted([*option.opts, *option.secondary_opts], key=lambda name: (-name.count("-"), name))


def hints(callback: Any) -> dict[str, Any]:
    """The annotations of the function behind a command, as typer reads them."""
    return {} if callback is None else typing.get_type_hints(inspect.unwrap(callback), include_extras=True)


def parameter(one: Any, annotated: dict[str, Any]) -> dict[str, Any]:
    """One argument or option, without what is only words."""
    hint = annotated[one.name]
    told = next(iter(getattr(hint, "__metadata__", ())), None)
    kind = hint.__origin__ if hasattr(hint, "__metadata__") else hint
    limits = {name: getattr(told, name) for name in LIMITS if told is not None and hasattr(told, name)}
    usual = {"min": None, "max": None, "exists": False, "file_okay": True, "dir_okay": True}
    found = {
        "type": names.type_text(kind),
        "required": one.required,
        "default": default_of(one.default),
        "multiple": bool(one.multiple) or one.nargs == -1,
        "flag": bool(getattr(one, "is_flag", False)),
        "variable": one.envvar,
        "hidden": one.hidden,
        **{name: value for name, value in limits.items() if value != usual[name]},
    }
    return found | ({"panel": told.rich_help_panel} if getattr(told, "rich_help_panel", None) else {})


def default_of(value: Any) -> Any:
    """A default as JSON has it."""
    value = value() if callable(value) else value
    value = getattr(value, "value", value)
    return value.as_posix() if isinstance(value, PurePath) else value
