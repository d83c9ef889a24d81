"""The files of a tuning: a journal from which it can resume, and a readable log.

``journal.jsonl`` has a line that describes the tuning, then a line per run, in order. A tuning depends only on its
runs, so an interrupted one is repeated from the start with the recorded runs instead of new ones, and arrives where it
stopped. ``log.txt`` has the same in words, each step as hypothesis, evidence, change, before, after and verdict.
"""

from __future__ import annotations

import contextlib
import os
from collections import deque
from collections.abc import Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import IO, Any, Final

import orjson

from tsbatch.errors import UsageError
from tsbatch.system.atomic_write import try_lock
from tsbatch.tuning.history import History, Step
from tsbatch.tuning.objective import WORDS, Figures, mean, shown
from tsbatch.tuning.observation import Observation
from tsbatch.tuning.search_space import ModelSettings
from tsbatch.tuning.tuner import Listener, Refused, System

SCHEMA: Final = 1
KIND: Final = "tuning"
JOURNAL: Final = "journal.jsonl"
LOG: Final = "log.txt"


class Journal:
    """The journal of one tuning, in its own directory.

    Args:
        folder: the directory; created if missing.
        about: what is tuned and how; a journal about something else is not resumed.
        fresh: start over, whatever the directory contains.

    Raises:
        UsageError: the journal there is about another tuning, is not a journal, or another tuning is writing it.
        OSError: the directory is not writable.
    """

    def __init__(self, folder: Path, about: Mapping[str, Any], *, fresh: bool = False) -> None:
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        self.path = folder / JOURNAL
        with contextlib.ExitStack() as undo:
            self._file = undo.enter_context(self.path.open("ab"))
            if not try_lock(self._file.fileno()):
                raise UsageError(f"another tuning is writing {self.path}; choose another --output")
            head = orjson.loads(orjson.dumps({"schema": SCHEMA, "kind": KIND, **about}))
            lines = [] if fresh else read_lines(self.path)
            if lines and lines[0] != head:
                different = sorted(name for name in {*head, *lines[0]} if head.get(name) != lines[0].get(name))
                raise UsageError(
                    f"{self.path} is from another tuning (different: {', '.join(different)}); choose another"
                    " --output, or start over with --fresh"
                )
            self.earlier = deque(lines[1:])
            self._keep(len(lines))
            if not lines:
                self._write(head)
            undo.pop_all()

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def add(self, line: Mapping[str, Any]) -> None:
        """Append a line and sync it to disk; drop earlier lines that were not used."""
        self.drop_earlier()
        self._write(line)
        os.fsync(self._file.fileno())

    def drop_earlier(self) -> None:
        """Drop the unused earlier lines: from here on the tuning differs from the recorded one."""
        if self.earlier:
            self._keep(len(read_lines(self.path)) - len(self.earlier))
            self.earlier.clear()

    def _keep(self, lines: int) -> None:
        """Truncate the file to this many whole lines; a crash may have left a partial one."""
        self._file.truncate(sum(map(len, self.path.read_bytes().splitlines(keepends=True)[:lines])))

    def _write(self, line: Mapping[str, Any]) -> None:
        self._file.write(_line(line))
        self._file.flush()


def _line(values: Mapping[str, Any]) -> bytes:
    return orjson.dumps(values, option=orjson.OPT_SERIALIZE_NUMPY | orjson.OPT_APPEND_NEWLINE)


def read_lines(path: Path) -> list[dict[str, Any]]:
    """Read the whole lines of a journal up to the first damaged one; none if there is no such file.

    Raises:
        UsageError: it is not a journal, or has another schema.
    """
    if not path.exists():
        return []
    lines: list[dict[str, Any]] = []
    for text in path.read_bytes().splitlines(keepends=True):
        try:
            line = orjson.loads(text)
        except orjson.JSONDecodeError:
            break
        if not text.endswith(b"\n"):
            break
        lines.append(line)
    head: Any = lines[0] if lines else {"kind": KIND, "schema": SCHEMA}
    if not isinstance(head, dict) or head.get("kind") != KIND:
        raise UsageError(f"{path} is not a journal of tsbatch tune; remove it or choose another --output")
    if head.get("schema") != SCHEMA:
        raise UsageError(f"{path} has schema {head.get('schema')!r}; this tsbatch reads schema {SCHEMA}")
    return lines


class JournaledSystem:
    """A system whose runs are recorded, and replayed from the journal while it has recorded ones.

    Args:
        system: the measured system.
        journal: the journal.
    """

    def __init__(self, system: System, journal: Journal) -> None:
        self._system, self._journal = system, journal
        self._session = 1 + max((line.get("session", 0) for line in journal.earlier), default=0)
        self._refusal: dict[str, Any] | None = None

    def measure(self, settings: ModelSettings) -> Observation:
        """See :class:`tsbatch.tuning.tuner.System`."""
        self.settle()
        earlier = self._journal.earlier
        # Another version of tsbatch may have decided differently; its later runs are of no use.
        if earlier and earlier[0].get("knobs") == asdict(settings):
            return _replayed(earlier.popleft())
        try:
            observation = replace(self._system.measure(settings), session=self._session)
        except Refused as error:
            self._journal.drop_earlier()
            self._refusal = {"knobs": asdict(settings), "refused": str(error)}
            raise
        self._journal.add(observation.to_json())
        # Use the values as the file has them, so that its rounding cannot change a decision on resuming.
        return _replayed(orjson.loads(_line(observation.to_json())))

    def settle(self) -> None:
        """Record the last refusal, after which the tuning continued or finished.

        A refusal that ended the tuning, for example of the initial settings, is not recorded.
        """
        if self._refusal is not None:
            self._journal.add(self._refusal)
            self._refusal = None


def _replayed(line: Mapping[str, Any]) -> Observation:
    if "refused" in line:
        raise Refused(line["refused"])
    try:
        return Observation.from_json(line)
    except (KeyError, TypeError) as error:
        raise UsageError(f"the journal is damaged ({type(error).__name__}: {error}); start over with --fresh") from None


class Log(Listener):
    """The readable log.

    Args:
        path: the file; overwritten, because an interrupted tuning is repeated from the start.
    """

    def __init__(self, path: Path) -> None:
        self._file: IO[str] = path.open("w", encoding="utf-8", newline="\n")

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def say(self, text: str) -> None:
        """Write some lines."""
        self._file.write(f"{text}\n")
        self._file.flush()

    def started(self, history: History) -> None:
        """Write the figures of the baseline."""
        runs = [run.figures for run in history.start]
        self.say(f"Baseline: {history.start[0].settings}\n  {render_figures(runs)} ({len(runs)} runs)\n")

    def judged(self, step: Step, history: History) -> None:
        """Write a step, and again if it is undone."""
        self.say(render_step(history.number(step), step))


def render_step(number: int, step: Step) -> str:
    """Render a step."""
    hypothesis = step.hypothesis
    lines = [f"Step {number}: {step.change}", f"  hypothesis  {hypothesis.why}"]
    lines += [f"  evidence    {text}" for text in hypothesis.evidence]
    lines += [f"  change      {step.change}"]
    if step.pairs:
        lines += [f"  before      {render_figures(step.before())}", f"  after       {render_figures(step.after())}"]
    return "\n".join([*lines, f"  verdict     {step.judgement.label}: {step.judgement.why}", ""])


def render_figures(figures: list[Figures]) -> str:
    """Render the typical figures of some runs."""
    typical = mean(figures)
    names = [name for name in WORDS if typical.of(name) == typical.of(name)]
    texts = [f"{WORDS[name][0]} {shown(name, typical.of(name))}" for name in names]
    return ", ".join(texts)
