"""Checks that several kinds of document have in common, and the words for their findings."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TypeVar

from tsbatch.configuration.known_settings import nearest
from tsbatch.lint.findings import Edit, Issue
from tsbatch.lint.properties_file import Pair
from tsbatch.lint.yaml_file import Entry

IGNORED = "TorchServe silently ignores it"
MAX_PLAUSIBLE_SECONDS = 10_000
SettingT = TypeVar("SettingT", Pair, Entry)


def fixed(pair: Pair, message: str, effect: str, *lines: str) -> Issue:
    """Return an issue that ``--fix`` can resolve by writing ``lines`` instead of a pair."""
    return Issue(pair.line, message, effect, "\n".join(lines), Edit(pair.line, pair.last, lines))


def repeated_keys(settings: Sequence[SettingT]) -> Iterator[tuple[SettingT, SettingT]]:
    """Yield each setting whose key occurs again, with the last one of that key."""
    last = {setting.key: setting for setting in settings}
    return ((setting, last[setting.key]) for setting in settings if setting is not last[setting.key])


def unknown(key: str, known: Iterable[str]) -> tuple[str, str]:
    """Return the message about an unknown key, and the known key that was probably meant; empty if none is similar."""
    meant = nearest(key, known) or ""
    return f"unknown key {key}" + (f"; did you mean {meant}?" if meant else ""), meant


def implausible_seconds(line: int, key: str, value: int, assign: str) -> Iterator[Issue]:
    """Find a timeout that was probably meant in milliseconds.

    Args:
        line: its line.
        key: its key.
        value: its value in seconds.
        assign: the characters between key and value in this format.
    """
    if value >= MAX_PLAUSIBLE_SECONDS:
        effect = f"TorchServe waits {value / 3600:.0f} hours for a worker that hangs"
        yield Issue(line, f"{key} is in seconds, not milliseconds", effect, f"{key}{assign}{value // 1000}")


def short_queue(line: int, subject: str, queue: int, batch: int, workers: int, assign: str) -> Iterator[Issue]:
    """Find a queue that is too short to fill every worker's batch while another batch waits.

    Args:
        line: the line of the queue's length.
        subject: the words for the queue.
        queue: its length.
        batch: the batch size.
        workers: the number of workers.
        assign: the key of the queue's length, and the characters between it and the value in this format.
    """
    needed = 2 * batch * workers
    if queue < needed:
        message = f"{subject} is below 2 x batchSize {batch} x workers {workers}"
        yield Issue(line, message, "bursts get 503 before batches are full", f"{assign}{needed}")
