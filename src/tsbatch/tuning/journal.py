"""What a tuning wrote down: a file from which it goes on, and a log for people.

``journal.jsonl`` has a line for what is tuned, then a line for each run, in order. A tuning is decided by its runs
alone; so one that was interrupted is done again from its beginning, with the runs that are there in place of new ones,
and arrives where it was. ``log.txt`` says the same in words, each step as hypothesis, evidence, change, before, after
and verdict.
"""

from __future__ import annotations

import contextlib
import os
from collections import deque
from collections.abc import Mapping
from dataclasses import replace
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
    """The journal of one tuning, in a folder of its own.

    Args:
        folder: where; made when it is not there.
        about: what is tuned and how; a journal that is about something else is not gone on with.
        fresh: begin anew, whatever is there.

    Raises:
        UsageError: the journal there is about something else, is none, or another tuning writes it.
        OSError: nothing can be written there.
    """

    def __init__(self, folder: Path, about: Mapping[str, Any], *, fresh: bool = False) -> None:
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        self.path = folder / JOURNAL
        with contextlib.ExitStack() as undo:
            self._file = undo.enter_context(self.path.open("ab"))
            if not try_lock(self._file.fileno()):
                raise UsageError(f"another tuning writes {self.path} at this moment; choose another --output")
            head = orjson.loads(orjson.dumps({"schema": SCHEMA, "kind": KIND, **about}))
            lines = [] if fresh else read_lines(self.path)
            if lines and lines[0] != head:
                different = sorted(name for name in {*head, *lines[0]} if head.get(name) != lines[0].get(name))
                raise UsageError(
                    f"{self.path} is about another tuning ({', '.join(different)} differ); choose another --output, or"
                    " begin anew with --fresh"
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
        """One more line, on the disk before this returns; earlier ones that were not taken go."""
        self.drop_earlier()
        self._write(line)
        os.fsync(self._file.fileno())

    def drop_earlier(self) -> None:
        """From here on it is another tuning than the one that was written down."""
        if self.earlier:
            self._keep(len(read_lines(self.path)) - len(self.earlier))
            self.earlier.clear()

    def _keep(self, lines: int) -> None:
        """So many whole lines and nothing else; a crash may have left half of one."""
        self._file.truncate(sum(map(len, self.path.read_bytes().splitlines(keepends=True)[:lines])))

    def _write(self, line: Mapping[str, Any]) -> None:
        self._file.write(_line(line))
        self._file.flush()


def _line(values: Mapping[str, Any]) -> bytes:
    return orjson.dumps(values, option=orjson.OPT_SERIALIZE_NUMPY | orjson.OPT_APPEND_NEWLINE)


def read_lines(path: Path) -> list[dict[str, Any]]:
    """The whole lines of a journal; none when there is no such file. What follows the first damaged one is left out.

    Raises:
        UsageError: it is no journal, or a later version's.
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
        raise UsageError(f"{path} is no journal of tsbatch tune; remove it or choose another --output")
    if head.get("schema") != SCHEMA:
        raise UsageError(f"{path} has schema {head.get('schema')!r}; this tsbatch reads schema {SCHEMA}")
    return lines


class JournaledSystem:
    """A system whose runs are written down, and taken from the journal as long as it has some.

    Args:
        system: what is measured.
        journal: where runs are written to.
    """

    def __init__(self, system: System, journal: Journal) -> None:
        self._system, self._journal = system, journal
        self._session = 1 + max((line.get("session", 0) for line in journal.earlier), default=0)
        self._refusal: dict[str, Any] | None = None

    def measure(self, settings: ModelSettings) -> Observation:
        """See :class:`tsbatch.tuning.tuner.System`."""
        self.settle()
        earlier = self._journal.earlier
        # Another version of tsbatch may have decided otherwise; what it measured from there on is no help.
        if earlier and earlier[0].get("knobs") == settings.to_json():
            return _taken(earlier.popleft())
        try:
            observation = replace(self._system.measure(settings), session=self._session)
        except Refused as error:
            self._journal.drop_earlier()
            self._refusal = {"knobs": settings.to_json(), "refused": str(error)}
            raise
        self._journal.add(observation.to_json())
        # As it will be read again: what is rounded in the file must not decide otherwise then.
        return _taken(orjson.loads(_line(observation.to_json())))

    def settle(self) -> None:
        """Write down the last refusal: the tuning went on after it, or came to its end.

        One that ended the tuning, of what there is for example, is no news for next time.
        """
        if self._refusal is not None:
            self._journal.add(self._refusal)
            self._refusal = None


def _taken(line: Mapping[str, Any]) -> Observation:
    if "refused" in line:
        raise Refused(line["refused"])
    try:
        return Observation.from_json(line)
    except (KeyError, TypeError) as error:
        raise UsageError(f"the journal is damaged ({type(error).__name__}: {error}); begin anew with --fresh") from None


class Log(Listener):
    """The log for people.

    Args:
        path: the file; written anew, since an interrupted tuning is gone through again.
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
        """What there is."""
        runs = [run.figures for run in history.start]
        self.say(f"Baseline: {history.start[0].settings}\n  {figures_line(runs)} ({len(runs)} runs)\n")

    def judged(self, step: Step, history: History) -> None:
        """One step; a second time when it is taken back."""
        self.say(step_text(history.number(step), step))


def step_text(number: int, step: Step) -> str:
    """A step in words."""
    hypothesis = step.hypothesis
    lines = [f"Step {number}: {step.change}", f"  hypothesis  {hypothesis.why}"]
    lines += [f"  evidence    {text}" for text in hypothesis.evidence]
    lines += [f"  change      {step.change}"]
    if step.pairs:
        lines += [f"  before      {figures_line(step.before())}", f"  after       {figures_line(step.after())}"]
    return "\n".join([*lines, f"  verdict     {step.judgement.verdict}: {step.judgement.why}", ""])


def figures_line(figures: list[Figures]) -> str:
    """The typical figures of some runs."""
    typical = mean(figures)
    names = [name for name in WORDS if typical.of(name) == typical.of(name)]
    told = [f"{WORDS[name][0]} {shown(name, typical.of(name))}" for name in names]
    return ", ".join(told)
