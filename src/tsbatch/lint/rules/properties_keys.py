"""Rules over the lines and keys of config.properties."""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import pairwise

from tsbatch.configuration.known_settings import (
    ENVIRONMENT,
    MEANT_FOR_A_MODEL,
    MEANT_FOR_THE_SERVER,
    PROPERTIES,
    nearest,
)
from tsbatch.lint.findings import Edit, Found
from tsbatch.lint.properties_file import Pair, PropertiesFile
from tsbatch.lint.registry import rule

IGNORED = "TorchServe ignores the line without a word"
WINDOWS_PATH = re.compile(r"[A-Za-z]:\\|\\\\")
EATEN = re.compile(r"\\(?:[^\\tnfru:=#! \r\n]|u(?![0-9a-fA-F]{4}))")
"""A backslash that Java drops: before anything that it does not escape."""
FREE_TEXT = {"vmargs", "cpu_launcher_args", "system_metrics_cmd"}
"""Keys whose values hold pairs of their own."""
SHELL_NAME = re.compile(r"\$\{(\w+)\}|(?<!\$)\$([A-Z_]\w+)(?!\$)")
SUGGESTED = {"disable_token_authorization": "true"}


def whole(pair: Pair, *lines: str) -> Edit:
    """An edit that puts ``lines`` in place of a pair."""
    return Edit(pair.line, pair.last, lines)


def unknown(pair: Pair) -> bool:
    """Whether TorchServe knows no such key."""
    return pair.key not in PROPERTIES


@rule(
    "config-unknown-key",
    PropertiesFile,
    "error",
    "a key that TorchServe does not know",
    "TorchServe drops a key of config.properties that it does not know, without a word; what was meant does not hold.",
)
def unknown_key(file: PropertiesFile) -> Iterator[Found]:
    """Misspelt and invented keys, with the nearest real one."""
    for pair in filter(unknown, file.pairs):
        if pair.key in ENVIRONMENT:
            right = f"{ENVIRONMENT[pair.key]}={pair.value}"
            message = f"{pair.key} is the name of an environment variable; the key is {ENVIRONMENT[pair.key]}"
            yield Found(pair.line, message, IGNORED, right, whole(pair, right))
        elif pair.key in MEANT_FOR_THE_SERVER:
            right = MEANT_FOR_THE_SERVER[pair.key]
            value = SUGGESTED.get(right, _value_for(right, pair))
            yield Found(pair.line, f"{pair.key} is no key; {right} is", IGNORED, f"{right}={value}")
        elif pair.key not in MEANT_FOR_A_MODEL and pair.key.lower() not in MEANT_FOR_A_MODEL:
            near = nearest(pair.key, PROPERTIES)
            hint = f"; did you mean {near}?" if near else "; remove the line"
            right = f"{near}={pair.raw}" if near else ""
            yield Found(pair.line, f"{pair.key} is no key{hint}", IGNORED, right, whole(pair, right) if near else None)


def _value_for(key: str, pair: Pair) -> str:
    kind = PROPERTIES[key]
    if kind == "address":
        return "http://127.0.0.1:8080"
    return re.sub(r"\\+", "/", pair.raw) if kind == "path" else pair.value


@rule(
    "config-model-key",
    PropertiesFile,
    "error",
    "a setting of one model in the server's file",
    "batchSize, maxBatchDelay and workers belong to a model: into the archive's model-config.yaml or into "
    "models={}. At the top level of config.properties TorchServe ignores them, and the model runs with batchSize 1.",
)
def model_key(file: PropertiesFile) -> Iterator[Found]:
    """``batch_size=8`` and the like, which many tutorials show."""
    for pair in filter(unknown, file.pairs):
        right = MEANT_FOR_A_MODEL.get(pair.key) or MEANT_FOR_A_MODEL.get(pair.key.lower())
        if right is None or pair.key in MEANT_FOR_THE_SERVER or pair.key in ENVIRONMENT:
            continue
        value = pair.value.split(maxsplit=1)[0] if pair.value.strip() else ""
        message = f"{pair.key} is a setting of a model, not of the server"
        effect = f"{IGNORED}; {right} stays what the archive or the default says"
        yield Found(pair.line, message, effect, f"in model-config.yaml: {right}: {value}")


@rule(
    "config-several-pairs",
    PropertiesFile,
    "error",
    "several pairs on one line",
    "In a .properties file a pair ends with the line: the second pair becomes part of the first one's value.",
)
def several_pairs(file: PropertiesFile) -> Iterator[Found]:
    """``batch_size=8 max_batch_delay=50`` on one line."""
    known = {*PROPERTIES, *MEANT_FOR_A_MODEL, *MEANT_FOR_THE_SERVER}
    for pair in file.pairs:
        if pair.key in FREE_TEXT or pair.line != pair.last:
            continue
        starts = [match for match in re.finditer(r"(?<=\s)(\w+)=", pair.raw) if match[1] in known]
        if starts:
            bounds = [0, *(match.start() for match in starts), len(pair.raw)]
            parts = [pair.raw[begin:end].strip() for begin, end in pairwise(bounds)]
            lines = (f"{pair.key}={parts[0]}", *parts[1:])
            names = ", ".join([pair.key, *(match[1] for match in starts)])
            effect = f"TorchServe reads one pair: {pair.key} with the value {pair.value!r}"
            yield Found(pair.line, f"{names} on one line", effect, "\n".join(lines), whole(pair, *lines))


@rule(
    "config-swallowed-line",
    PropertiesFile,
    "error",
    "a backslash at the end of a line that swallows the next one",
    "A backslash at the end of a line joins the next line to it: after a path like C:\\models\\ the next setting is "
    "gone.",
)
def swallowed_line(file: PropertiesFile) -> Iterator[Found]:
    """A pair whose continuation is itself a pair."""
    for pair in file.pairs:
        first, *rest = re.split(r"\\\r?\n|\\\r", pair.raw)
        inner = [text.strip() for text in rest]
        lost = [text for text in inner if re.split(r"\s*[=:]", text, maxsplit=1)[0] in PROPERTIES]
        if lost and pair.key not in {"models", *FREE_TEXT}:
            lines = (f"{pair.key}={first.strip()}", *inner)
            effect = f"TorchServe reads {pair.key} as {pair.value!r}; {lost[0]!r} is not read as a setting"
            message = f"the backslash at the end of {pair.key} swallows the next line"
            yield Found(pair.line, message, effect, "\n".join(lines), whole(pair, *lines))


@rule(
    "config-backslash",
    PropertiesFile,
    "error",
    "a backslash that Java eats",
    "In a .properties file a backslash escapes the next character and goes: C:\\models becomes C:models, and in "
    "allowed_urls the dot of example\\.com matches anything. Write / in paths, and \\\\ for one backslash.",
)
def backslash(file: PropertiesFile) -> Iterator[Found]:
    """Windows paths and regular expressions that lose their backslashes."""
    for pair in file.pairs:
        if pair.line != pair.last:
            continue
        windows = WINDOWS_PATH.match(pair.raw) is not None or PROPERTIES.get(pair.key) == "path"
        text = re.sub(r"\\\\", "", pair.raw)
        if (windows and "\\" in text) or EATEN.search(text):
            change = re.sub(r"\\+", "/", pair.raw) if windows else re.sub(r"(?<!\\)\\(?!\\)", r"\\\\", pair.raw)
            right = f"{pair.key}={change}"
            message = f"Java eats the backslash in the value of {pair.key}"
            yield Found(pair.line, message, f"TorchServe reads {pair.value!r}", right, whole(pair, right))


@rule(
    "config-duplicate-key",
    PropertiesFile,
    "warning",
    "a key that stands there twice",
    "Of a key that stands there twice Java keeps the last value, without a word.",
)
def duplicate_key(file: PropertiesFile) -> Iterator[Found]:
    """All but the last of equal keys."""
    for place, pair in enumerate(file.pairs):
        later = [other for other in file.pairs[place + 1 :] if other.key == pair.key]
        if later:
            effect = f"TorchServe uses line {later[-1].line}: {later[-1].value!r}"
            message = f"{pair.key} stands in line {later[-1].line} again"
            yield Found(pair.line, message, effect, f"remove line {pair.line}", whole(pair))


@rule(
    "config-inline-comment",
    PropertiesFile,
    "error",
    "a comment behind a value",
    "A .properties file knows comments only on lines of their own: # behind a value is part of the value.",
)
def inline_comment(file: PropertiesFile) -> Iterator[Found]:
    """``job_queue_size=100 # requests``."""
    for pair in file.pairs:
        match = re.match(r"(?P<value>.*?)\s+#\s*(?P<comment>.*)$", pair.raw)
        if match and pair.line == pair.last and pair.key not in FREE_TEXT:
            lines = (f"# {match['comment']}", f"{pair.key}={match['value']}")
            effect = f"TorchServe reads the value {pair.value!r}"
            yield Found(
                pair.line,
                f"the comment belongs to the value of {pair.key}",
                effect,
                "\n".join(lines),
                whole(pair, *lines),
            )


@rule(
    "config-trailing-blank",
    PropertiesFile,
    "error",
    "a blank behind a value",
    "Java keeps blanks at the end of a value: 'true ' is false, '100 ' is no number, 'all ' is a file of that name.",
)
def trailing_blank(file: PropertiesFile) -> Iterator[Found]:
    """``enable_model_api=true`` and a blank."""
    for pair in file.pairs:
        strict = PROPERTIES.get(pair.key, "text") != "text" or pair.key in {"load_models", "service_envelope"}
        if strict and pair.line == pair.last and pair.value != pair.value.rstrip() and pair.value.strip():
            right = f"{pair.key}={pair.raw.rstrip()}"
            effect = f"TorchServe reads {pair.value!r}, the blank included"
            yield Found(
                pair.line, f"there is a blank behind the value of {pair.key}", effect, right, whole(pair, right)
            )


@rule(
    "config-quotes",
    PropertiesFile,
    "error",
    "quotes around a value",
    "A .properties file knows no quotes: they become part of the value.",
)
def quotes(file: PropertiesFile) -> Iterator[Found]:
    """``inference_address="http://..."``."""
    for pair in file.pairs:
        match = re.fullmatch(r"(?P<quote>['\"])(?P<inner>[^'\"]*)(?P=quote)", pair.raw.strip())
        if match and pair.key not in FREE_TEXT:
            right = f"{pair.key}={match['inner']}"
            effect = f"TorchServe reads the value {pair.value.strip()}, quotes included"
            yield Found(pair.line, f"the quotes belong to the value of {pair.key}", effect, right, whole(pair, right))


@rule(
    "config-env-syntax",
    PropertiesFile,
    "error",
    "an environment variable written as a shell would",
    "TorchServe expands $$NAME$$ in values of config.properties, and nothing else: ${NAME} and $NAME stay as they are.",
)
def env_syntax(file: PropertiesFile) -> Iterator[Found]:
    """``model_store=${HOME}/models``."""
    for pair in file.pairs:
        text = re.sub(r"\$\$[^$]+\$\$", "", pair.raw)
        if SHELL_NAME.search(text) and pair.key not in {*FREE_TEXT, "allowed_urls"}:
            right = f"{pair.key}={SHELL_NAME.sub(_dollars, pair.raw)}"
            effect = f"TorchServe takes {pair.value!r} as it stands"
            yield Found(
                pair.line, f"{pair.key} uses a shell's way to name a variable", effect, right, whole(pair, right)
            )


def _dollars(match: re.Match[str]) -> str:
    return f"$${match[1] or match[2]}$$"
