#!/usr/bin/env python3
"""The same model, texts and load through TorchServe with tsbatch and through four other serving systems.

    python benchmarks/peers.py                 tables, in about 20 minutes
    python benchmarks/peers.py --quick         some minutes, to see that it works
    python benchmarks/peers.py --save FILE     every figure

LitServe, Ray Serve, infinity-emb and BentoML each get an environment of their own in .venv-peers (the first run makes
them) and a sweep of workers x threads x batch, and then take turns with tsbatch: with dynamic batches of 32, and at the
best of their sweep, each server up for its own turn only. tsbatch runs as docs/speed.md recommends. All give the same
vectors, which is checked. A peer that cannot be installed or started is in the report, with the reason.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import median
from typing import Any, Final

from _bench import Bench, Case, load_on, request_for
from _corpus import corpora, minilm_tokens
from _peers import EXAMPLE, PEERS, Name, PeerError, PeerServer, PeerSystem, install, serving, sweep
from _ratios import Spread, ratios, turn
from _systems import RECOMMENDED, model_dir
from _tables import Say, Target, deliver, figures_of, machine, options, progress, table, targets

from tsbatch.system.signals import end_on_signals
from tsbatch.worker.resources import usable_cores

COUNT: Final = 512
PAGE: Final = Path(__file__).resolve().parent.parent / "docs" / "peers.md"
BEGIN: Final = "<!-- measured by benchmarks/peers.py -->"
DYNAMIC: Final = 32
OURS: Final = "tsbatch"


@dataclass(frozen=True)
class Plan:
    """How much is measured.

    Attributes:
        turns: alternations.
        swept: the load of the sweep.
        case: the load of the turns.
        quick: one setting a peer.
    """

    turns: int
    swept: Case
    case: Case
    quick: bool = False


DEFAULT: Final = Plan(3, Case("mixed", 64, 128, 0.0), Case("mixed", 64, 256, 5.0))
QUICK: Final = Plan(1, Case("mixed", 32, 64, 0.0), Case("mixed", 32, 64, 0.0), quick=True)


@dataclass(frozen=True, slots=True)
class PeerRun:
    """What a system gave under a load, once; ``system`` is None for tsbatch. Times in ms."""

    system: PeerSystem | None
    case: Case
    turn: int
    rate: float
    p50: float
    p99: float

    def figures(self) -> dict[str, Any]:
        """As one flat JSON object."""
        who = self.system.figures() if self.system else {"peer": OURS}
        return {**who, **asdict(self.case), "turn": self.turn, "rate": self.rate, "p50": self.p50, "p99": self.p99}


@dataclass
class Results:
    """Everything that was measured.

    Attributes:
        swept: the sweep's runs.
        runs: the runs of the turns.
        missing: peers that could not take part, and why.
    """

    swept: list[PeerRun] = field(default_factory=list)
    runs: list[PeerRun] = field(default_factory=list)
    missing: dict[Name, str] = field(default_factory=dict)

    def figures(self) -> dict[str, Any]:
        """As one JSON object."""
        return {
            "schema": 1,
            "machine": machine(),
            "tsbatch": RECOMMENDED.settings,
            "peers": {name: {"title": peer.title, "versions": list(peer.requirements)} for name, peer in PEERS.items()},
            "missing": self.missing,
            "sweep": [run.figures() for run in self.swept],
            "runs": [run.figures() for run in self.runs],
        }

    def chosen(self, peer: Name) -> list[PeerSystem]:
        """What takes turns: the best setting with batches of 32, and the best of all."""
        runs = [(run.rate, run.system) for run in self.swept if run.system and run.system.peer == peer]
        dynamic = [(rate, system) for rate, system in runs if system.batch == DYNAMIC]
        best = [max(some, key=lambda pair: pair[0])[1] for some in (dynamic, runs) if some]
        return list(dict.fromkeys(best))


def expected_vector() -> list[float]:
    """What transformers itself gives for the example."""
    import torch
    from transformers import AutoModel, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(model_dir(), local_files_only=True)
    model = AutoModel.from_pretrained(model_dir(), local_files_only=True).eval()
    with torch.inference_mode():
        vector: list[float] = model(**tokenizer(EXAMPLE, return_tensors="pt")).last_hidden_state.mean(1)[0].tolist()
    return vector


class Comparison:
    """The peers' servers and ours.

    Args:
        texts: the corpora by name.
        say: told what happens.
    """

    def __init__(self, texts: Mapping[str, Sequence[str]], say: Say) -> None:
        self.texts, self.say = texts, say
        self.expected = expected_vector()
        self.results = Results()
        self.programs: dict[Name, Path] = {}

    def install(self) -> None:
        """Have each peer's environment."""
        for peer in PEERS:
            self.say(f"installing {PEERS[peer].title}")
            try:
                self.programs[peer] = install(peer)
            except PeerError as error:
                self.miss(peer, f"cannot be installed: {error}")

    def sweep(self, plan: Plan) -> None:
        """Run each setting of each peer once, but for those that an earlier sweep has."""
        swept = {run.system for run in self.results.swept}
        for peer in list(self.programs):
            settings = [one for one in sweep(peer, usable_cores(), quick=plan.quick) if one not in swept]
            reasons = [self.try_out(system, plan) for system in settings]
            if not self.results.chosen(peer):
                self.miss(peer, f"cannot be started: {reasons[0]}")

    def try_out(self, system: PeerSystem, plan: Plan) -> str | None:
        """Run one setting; why it could not run, or None."""
        try:
            with serving(system, self.programs[system.peer], self.expected) as server:
                self.results.swept.append(self.run(server, plan.swept, 0))
        except PeerError as error:
            self.say(f"{system}: {error}")
            return f"{system.settings}: {error}"
        return None

    def take_turns(self, plan: Plan, bench: Bench) -> None:
        """Run everybody, turn by turn; each server is up for its own turn only, since some compute while idle."""
        everybody: list[PeerSystem | None] = [None]  # None is ours
        everybody += [system for peer in self.programs for system in self.results.chosen(peer)]
        bench.start(RECOMMENDED)
        for number in range(plan.turns):
            for system in turn(everybody, number):
                if system is None:
                    self.results.runs.append(ours(bench, plan.case, number))
                elif system.peer not in self.results.missing:
                    self.take_turn(system, plan.case, number)

    def take_turn(self, system: PeerSystem, case: Case, number: int) -> None:
        """Start a peer, run it once and end it; it takes no part when that fails twice."""
        if self._failed(system, case, number) and (why := self._failed(system, case, number)):
            self.results.missing[system.peer] = f"failed twice with {system.settings}: {why}"
            self.results.runs = [run for run in self.results.runs if not run.system or run.system.peer != system.peer]

    def _failed(self, system: PeerSystem, case: Case, number: int) -> str | None:
        try:
            with serving(system, self.programs[system.peer], self.expected) as server:
                self.results.runs.append(self.run(server, case, number))
        except PeerError as error:
            self.say(f"{system}: {error}")
            return str(error)
        return None

    def run(self, server: PeerServer, case: Case, number: int) -> PeerRun:
        """Put the load on a peer once.

        Raises:
            PeerError: it did not answer all of it.
        """
        fields = {"Host": server.address, "Content-Type": "application/json"}
        texts = self.texts[case.corpus]
        requests = [request_for(server.peer.path, fields, server.peer.body(text)) for text in texts]
        with load_on(server.address, requests, case) as load:
            said = load.communicate()[0]
        if load.returncode:
            raise PeerError("the load failed; its own message is above")
        answer = json.loads(said)
        self.say(f"turn {number + 1}: {server.system}: {answer['rate']:.1f}/s, P99 {answer['p99']:.0f} ms")
        return PeerRun(server.system, case, number, answer["rate"], answer["p50"], answer["p99"])

    def miss(self, peer: Name, why: str) -> None:
        """Go on without a peer."""
        self.say(f"{PEERS[peer].title} {why}")
        self.results.missing[peer] = why
        self.programs.pop(peer, None)


def sweep_in(file: Path) -> list[PeerRun]:
    """The sweep that an earlier run has saved."""
    rows = json.loads(file.read_text(encoding="utf-8"))["sweep"]
    case, system = ("corpus", "clients", "round_size", "seconds"), ("peer", "workers", "threads", "batch", "delay")
    return [
        PeerRun(
            PeerSystem(**{name: row[name] for name in system}),
            Case(**{name: row[name] for name in case}),
            **{name: row[name] for name in ("turn", "rate", "p50", "p99")},
        )
        for row in rows
    ]


def ours(bench: Bench, case: Case, number: int) -> PeerRun:
    """Tsbatch under the load, once."""
    run = bench.run(RECOMMENDED, case, number)
    return PeerRun(None, case, number, run.rate, run.p50, run.p99)


def measure(plan: Plan, say: Say, earlier: Sequence[PeerRun] = ()) -> Results:
    """All of it, but for the settings in an ``earlier`` sweep."""
    texts = corpora(COUNT, minilm_tokens(model_dir()))
    comparison = Comparison(texts, say)
    comparison.install()
    comparison.results.swept += earlier
    with end_on_signals():
        comparison.sweep(plan)
    with tempfile.TemporaryDirectory(prefix="tsbatch-peers-") as folder, Bench(Path(folder), texts, say) as bench:
        comparison.take_turns(plan, bench)
    return comparison.results


def report(figures: Mapping[str, Any]) -> str:
    """The tables."""
    about, runs = figures["machine"], figures["runs"]
    text = (
        f"{about['cores']} cores ({about['cpu']}), torch {about['torch']}; {runs[0]['clients']} clients, mixed texts."
    )
    missing = [f"{figures['peers'][peer]['title']} took no part: it {why}." for peer, why in figures["missing"].items()]
    rows = [[*_who(run), f"{run['rate']:.1f}", f"{run['p99']:.0f}"] for run in figures["sweep"]]
    swept = table(["system", "settings", "requests/s", "P99 ms"], rows)
    return "\n\n".join([text, *missing, targets(wanted_of(figures)), _turns(figures), f"### The sweep\n\n{swept}"])


def _turns(figures: Mapping[str, Any]) -> str:
    mine = [run["rate"] for run in figures["runs"] if run["peer"] == OURS]
    rows = []
    for who, runs in _by_system(figures["runs"]):
        rates = [run["rate"] for run in runs]
        latency = f"{median(run['p50'] for run in runs):.0f} / {median(run['p99'] for run in runs):.0f}"
        ratio = "" if runs[0]["peer"] == OURS else ratios(mine, rates).text()
        name, settings = ("tsbatch on TorchServe", figures["tsbatch"]) if runs[0]["peer"] == OURS else who
        rows.append([name, settings, Spread.of(rates).text(1), latency, ratio])
    return table(["system", "settings", "requests/s", "P50 / P99 ms", "tsbatch is × as fast"], rows)


def _by_system(runs: Sequence[Mapping[str, Any]]) -> Iterator[tuple[list[str], list[Mapping[str, Any]]]]:
    whole = sorted(runs, key=lambda run: int(run["turn"]))
    for who in dict.fromkeys(tuple(_who(run)) for run in whole):
        yield list(who), [run for run in whole if tuple(_who(run)) == who]


def _who(run: Mapping[str, Any]) -> list[str]:
    if run["peer"] == OURS:
        return [OURS, ""]
    system = PeerSystem(**{name: run[name] for name in ("peer", "workers", "threads", "batch", "delay")})
    return [PEERS[system.peer].title, system.settings]


DYNAMIC_LEAST: Final = 3.0
BEST_LEAST: Final = 1.3


def wanted_of(figures: Mapping[str, Any]) -> list[Target]:
    """What issue 3 asks for: against each peer with dynamic batching, and at its best."""
    mine = [run["rate"] for run in figures["runs"] if run["peer"] == OURS]
    wanted = []
    for peer, about in figures["peers"].items():
        own = [runs for _, runs in _by_system(figures["runs"]) if runs[0]["peer"] == peer]
        for what, least, some in (
            ("with dynamic batching", DYNAMIC_LEAST, [runs for runs in own if runs[0]["batch"] == DYNAMIC]),
            ("at its best", BEST_LEAST, own),
        ):
            rates = max(([run["rate"] for run in runs] for runs in some), key=median, default=None)
            if rates:
                wanted.append(Target(f"× {about['title']} {what}", least, ratios(mine, rates)))
    return wanted


def main(words: list[str]) -> int:
    """Measure, print, write; exit code 1 when a target is missed."""
    parser = options("tsbatch on TorchServe against other serving systems.")
    parser.add_argument("--quick", action="store_true", help="some minutes, to see that it works")
    parser.add_argument("--swept", type=Path, metavar="FILE", help="what this --save file has swept is not swept again")
    chosen = parser.parse_args(words)
    os.environ["HF_HUB_OFFLINE"] = "1"
    plan, earlier = QUICK if chosen.quick else DEFAULT, sweep_in(chosen.swept) if chosen.swept else []
    figures = figures_of(chosen, lambda: measure(plan, progress(), earlier).figures())
    return deliver(chosen, figures, report(figures), PAGE, BEGIN, [] if chosen.quick else wanted_of(figures))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
