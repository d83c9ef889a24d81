"""Rules for the lines and keys of config.properties."""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import pairwise

from tsbatch.configuration.known_settings import ENVIRONMENT, MEANT_FOR_A_MODEL, MEANT_FOR_THE_SERVER, PROPERTIES
from tsbatch.lint.findings import Edit, Issue
from tsbatch.lint.properties_file import Pair, PropertiesFile
from tsbatch.lint.registry import rule
from tsbatch.lint.rules.shared_checks import IGNORED, fixed, repeated_keys, unknown

WINDOWS_PATH = re.compile(r"[A-Za-z]:\\|\\\\")
LOST_BACKSLASH = re.compile(r"\\(?:[^\\tnfru:=#! \r\n]|u(?![0-9a-fA-F]{4}))")
"""A backslash that Java drops: one before a character that needs no escape."""
FREE_TEXT = {"vmargs", "cpu_launcher_args", "system_metrics_cmd"}
"""Keys whose values hold pairs of their own."""
SHELL_VARIABLE = re.compile(r"\$\{(\w+)\}|(?<!\$)\$([A-Z_]\w+)(?!\$)")


def _unknown_pairs(file: PropertiesFile) -> Iterator[Pair]:
    return (pair for pair in file.pairs if pair.key not in PROPERTIES)


def _value_pairs(file: PropertiesFile) -> Iterator[Pair]:
    """The pairs on one line whose values cannot hold pairs of their own."""
    return (pair for pair in file.pairs if pair.key not in FREE_TEXT and pair.line == pair.last)


@rule("config-unknown-key", PropertiesFile, "error")
def unknown_key(file: PropertiesFile) -> Iterator[Issue]:
    """An unknown key.

    TorchServe silently ignores a key of config.properties that it does not know, so the setting has no effect.
    """
    for pair in _unknown_pairs(file):
        if key := ENVIRONMENT.get(pair.key):
            message = f"{pair.key} is the name of an environment variable; the key is {key}"
            yield fixed(pair, message, IGNORED, f"{key}={pair.value}")
        elif key := MEANT_FOR_THE_SERVER.get(pair.key):
            yield Issue(pair.line, f"unknown key {pair.key}; use {key}", IGNORED, f"{key}={_value_for(key, pair)}")
        elif not _model_setting(pair):
            message, meant = unknown(pair.key, PROPERTIES)
            if meant:
                yield fixed(pair, message, IGNORED, f"{meant}={pair.raw}")
            else:
                yield Issue(pair.line, f"{message}; remove the line", IGNORED)


def _value_for(key: str, pair: Pair) -> str:
    if key == "disable_token_authorization":
        return "true"
    kind = PROPERTIES[key]
    if kind == "address":
        return "http://127.0.0.1:8080"
    return re.sub(r"\\+", "/", pair.raw) if kind == "path" else pair.value


def _model_setting(pair: Pair) -> str | None:
    return MEANT_FOR_A_MODEL.get(pair.key) or MEANT_FOR_A_MODEL.get(pair.key.lower())


@rule("config-model-key", PropertiesFile, "error")
def model_key(file: PropertiesFile) -> Iterator[Issue]:
    """A model's setting in the server's file.

    batchSize, maxBatchDelay and workers belong to a model: set them in the archive's model-config.yaml or in models={}.
    TorchServe ignores them at the top level of config.properties, and the model runs with batchSize 1.
    """
    for pair in _unknown_pairs(file):
        right = _model_setting(pair)
        if right is None or pair.key in MEANT_FOR_THE_SERVER or pair.key in ENVIRONMENT:
            continue
        value = pair.value.split(maxsplit=1)[0] if pair.value.strip() else ""
        message = f"{pair.key} is a setting of a model, not of the server"
        effect = f"{IGNORED}; the archive's or the default {right} is used"
        yield Issue(pair.line, message, effect, f"in model-config.yaml: {right}: {value}")


@rule("config-several-pairs", PropertiesFile, "error")
def several_pairs(file: PropertiesFile) -> Iterator[Issue]:
    """Several pairs on one line.

    In a .properties file, a pair ends with the line, so the second pair becomes part of the first one's value.
    """
    known = {*PROPERTIES, *MEANT_FOR_A_MODEL, *MEANT_FOR_THE_SERVER}
    for pair in _value_pairs(file):
        starts = [match for match in re.finditer(r"(?<=\s)(\w+)=", pair.raw) if match[1] in known]
        if starts:
            bounds = [0, *(match.start() for match in starts), len(pair.raw)]
            first, *others = (pair.raw[begin:end].strip() for begin, end in pairwise(bounds))
            keys = ", ".join([pair.key, *(match[1] for match in starts)])
            effect = f"TorchServe reads one pair: {pair.key} with the value {pair.value!r}"
            yield fixed(pair, f"{keys} on one line", effect, f"{pair.key}={first}", *others)


@rule("config-swallowed-line", PropertiesFile, "error")
def swallowed_line(file: PropertiesFile) -> Iterator[Issue]:
    r"""A backslash at the end of a line that swallows the next line.

    A backslash at the end of a line joins the next line to it: after a path like C:\models\ the next setting is lost.
    """
    for pair in file.pairs:
        first, *rest = (text.strip() for text in re.split(r"\\\r?\n|\\\r", pair.raw))
        lost = [text for text in rest if re.split(r"\s*[=:]", text, maxsplit=1)[0] in PROPERTIES]
        if lost and pair.key not in {"models", *FREE_TEXT}:
            effect = f"TorchServe reads {pair.key} as {pair.value!r} and does not see the setting {lost[0]!r}"
            message = f"the backslash at the end of {pair.key} swallows the next line"
            yield fixed(pair, message, effect, f"{pair.key}={first}", *rest)


@rule("config-backslash", PropertiesFile, "error")
def backslash(file: PropertiesFile) -> Iterator[Issue]:
    r"""A backslash that Java removes.

    In a .properties file, a backslash escapes the next character and disappears: C:\models becomes C:models, and in
    allowed_urls the dot of example\.com matches any character. Write / in paths, and \\ for one backslash.
    """
    for pair in file.pairs:
        if pair.line != pair.last:
            continue
        windows = WINDOWS_PATH.match(pair.raw) is not None or PROPERTIES.get(pair.key) == "path"
        text = re.sub(r"\\\\", "", pair.raw)
        if (windows and "\\" in text) or LOST_BACKSLASH.search(text):
            right = re.sub(r"\\+", "/", pair.raw) if windows else re.sub(r"(?<!\\)\\(?!\\)", r"\\\\", pair.raw)
            message = f"Java removes the backslash in the value of {pair.key}"
            yield fixed(pair, message, f"TorchServe reads {pair.value!r}", f"{pair.key}={right}")


@rule("config-duplicate-key", PropertiesFile, "warning")
def duplicate_key(file: PropertiesFile) -> Iterator[Issue]:
    """A duplicate key.

    If a key occurs twice, Java silently uses the last value.
    """
    for pair, last in repeated_keys(file.pairs):
        effect, edit = f"TorchServe uses line {last.line}: {last.value!r}", Edit(pair.line, pair.last, ())
        message = f"{pair.key} is set again in line {last.line}"
        yield Issue(pair.line, message, effect, f"remove line {pair.line}", edit)


@rule("config-inline-comment", PropertiesFile, "error")
def inline_comment(file: PropertiesFile) -> Iterator[Issue]:
    """A comment after a value.

    In a .properties file, a comment needs its own line: # after a value is part of the value.
    """
    for pair in _value_pairs(file):
        if match := re.match(r"(?P<value>.*?)\s+#\s*(?P<comment>.*)$", pair.raw):
            lines = (f"# {match['comment']}", f"{pair.key}={match['value']}")
            message = f"the comment becomes part of the value of {pair.key}"
            yield fixed(pair, message, f"TorchServe reads the value {pair.value!r}", *lines)


@rule("config-trailing-blank", PropertiesFile, "error")
def trailing_blank(file: PropertiesFile) -> Iterator[Issue]:
    """Trailing whitespace after a value.

    Java keeps it: 'true ' counts as false, '100 ' is not a number, and 'all ' is a file name.
    """
    for pair in file.pairs:
        strict = PROPERTIES.get(pair.key, "text") != "text" or pair.key in {"load_models", "service_envelope"}
        if strict and pair.line == pair.last and pair.value != pair.value.rstrip() and pair.value.strip():
            message = f"trailing whitespace after the value of {pair.key}"
            effect = f"TorchServe reads {pair.value!r}, including the whitespace"
            yield fixed(pair, message, effect, f"{pair.key}={pair.raw.rstrip()}")


@rule("config-quotes", PropertiesFile, "error")
def quotes(file: PropertiesFile) -> Iterator[Issue]:
    """Quotes around a value.

    Quotes have no meaning in a .properties file; they become part of the value.
    """
    for pair in file.pairs:
        match = re.fullmatch(r"(?P<quote>['\"])(?P<inner>[^'\"]*)(?P=quote)", pair.raw.strip())
        if match and pair.key not in FREE_TEXT:
            message = f"the quotes become part of the value of {pair.key}"
            effect = f"TorchServe reads the value {pair.value.strip()}, including the quotes"
            yield fixed(pair, message, effect, f"{pair.key}={match['inner']}")


@rule("config-env-syntax", PropertiesFile, "error")
def env_syntax(file: PropertiesFile) -> Iterator[Issue]:
    """An environment variable in shell syntax.

    In the values of config.properties, TorchServe expands only $$NAME$$; ${NAME} and $NAME stay as they are.
    """
    for pair in file.pairs:
        text = re.sub(r"\$\$[^$]+\$\$", "", pair.raw)
        if SHELL_VARIABLE.search(text) and pair.key not in {*FREE_TEXT, "allowed_urls"}:
            right = SHELL_VARIABLE.sub(lambda match: f"$${match[1] or match[2]}$$", pair.raw)
            message = f"{pair.key} names an environment variable in shell syntax"
            yield fixed(pair, message, f"TorchServe uses {pair.value!r} literally", f"{pair.key}={right}")
