#!/usr/bin/env python3
"""Compare tsbatch on TorchServe with four other serving systems: the same model, texts and load.

    python benchmarks/peers.py                 print tables; takes about 20 minutes
    python benchmarks/peers.py --quick         a check of some minutes that the benchmark works
    python benchmarks/peers.py --save FILE     write all figures to FILE

LitServe, Ray Serve, infinity-emb and BentoML each get a separate environment in .venv-peers (created by the first run)
and a sweep of workers x threads x batch. They are then measured in turn with tsbatch: with dynamic batches of 32, and
with the best settings of the sweep; each server runs only during its turn. tsbatch runs with the settings that
docs/speed.md recommends. The benchmark checks that all return the same vectors. The report names peers that cannot be
installed or started, with the reason.
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

from _bench import Bench, Case, load_on, outcome_of, request_for
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
    """The size of the benchmark.

    Attributes:
        turns: turns of all systems.
        swept: the load of the sweep.
        case: the load of the turns.
        quick: try only one setting per peer.
    """

    turns: int
    swept: Case
    case: Case
    quick: bool = False


DEFAULT: Final = Plan(3, Case("mixed", 64, 128, 0.0), Case("mixed", 64, 256, 5.0))
QUICK: Final = Plan(1, Case("mixed", 32, 64, 0.0), Case("mixed", 32, 64, 0.0), quick=True)


@dataclass(frozen=True, slots=True)
class PeerRun:
    """The figures of one run of a system; ``system`` is None for tsbatch. Times are in ms."""

    system: PeerSystem | None
    case: Case
    turn: int
    rate: float
    p50: float
    p99: float

    def figures(self) -> dict[str, Any]:
        """Convert to one flat JSON object."""
        system = self.system.figures() if self.system else {"peer": OURS}
        return {**system, **asdict(self.case), "turn": self.turn, "rate": self.rate, "p50": self.p50, "p99": self.p99}


@dataclass
class Results:
    """All measurements.

    Attributes:
        swept: the sweep's runs.
        runs: the runs of the turns.
        missing: the peers that could not be measured, with the reason.
    """

    swept: list[PeerRun] = field(default_factory=list)
    runs: list[PeerRun] = field(default_factory=list)
    missing: dict[Name, str] = field(default_factory=dict)

    def figures(self) -> dict[str, Any]:
        """Convert to one JSON object."""
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
        """Select the settings for the turns: the best with batches of 32, and the best of all."""
        runs = [(run.rate, run.system) for run in self.swept if run.system and run.system.peer == peer]
        dynamic = [(rate, system) for rate, system in runs if system.batch == DYNAMIC]
        best = [max(some, key=lambda pair: pair[0])[1] for some in (dynamic, runs) if some]
        return list(dict.fromkeys(best))


def expected_vector() -> list[float]:
    """Compute the example's vector with transformers alone."""
    import torch
    from transformers import AutoModel, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(model_dir(), local_files_only=True)
    model = AutoModel.from_pretrained(model_dir(), local_files_only=True).eval()
    with torch.inference_mode():
        vector: list[float] = model(**tokenizer(EXAMPLE, return_tensors="pt")).last_hidden_state.mean(1)[0].tolist()
    return vector


class Comparison:
    """The comparison of the peers' servers with tsbatch.

    Args:
        texts: the corpora by name.
        say: receives progress messages.
    """

    def __init__(self, texts: Mapping[str, Sequence[str]], say: Say) -> None:
        self.texts, self.say = texts, say
        self.expected = expected_vector()
        self.results = Results()
        self.programs: dict[Name, Path] = {}

    def install(self) -> None:
        """Install each peer's environment."""
        for peer in PEERS:
            self.say(f"installing {PEERS[peer].title}")
            try:
                self.programs[peer] = install(peer)
            except PeerError as error:
                self.miss(peer, f"cannot be installed: {error}")

    def sweep(self, plan: Plan) -> None:
        """Run each setting of each peer once, except those in an earlier sweep."""
        swept = {run.system for run in self.results.swept}
        for peer in list(self.programs):
            settings = [one for one in sweep(peer, usable_cores(), quick=plan.quick) if one not in swept]
            reasons = [self.try_out(system, plan) for system in settings]
            if not self.results.chosen(peer):
                self.miss(peer, f"cannot be started: {reasons[0]}")

    def try_out(self, system: PeerSystem, plan: Plan) -> str | None:
        """Run one setting; return the reason if it failed, or None."""
        try:
            with serving(system, self.programs[system.peer], self.expected) as server:
                self.results.swept.append(self.run(server, plan.swept, 0))
        except PeerError as error:
            self.say(f"{system}: {error}")
            return f"{system.settings}: {error}"
        return None

    def take_turns(self, plan: Plan, bench: Bench) -> None:
        """Run all systems in turn; each peer's server runs only during its turn, because some compute while idle."""
        systems: list[PeerSystem | None] = [None]  # None is tsbatch
        systems += [system for peer in self.programs for system in self.results.chosen(peer)]
        bench.start(RECOMMENDED)
        for number in range(plan.turns):
            for system in turn(systems, number):
                if system is None:
                    self.results.runs.append(run_tsbatch(bench, plan.case, number))
                elif system.peer not in self.results.missing:
                    self.take_turn(system, plan.case, number)

    def take_turn(self, system: PeerSystem, case: Case, number: int) -> None:
        """Start a peer, run it once and stop it; exclude it if that fails twice."""
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
        """Run the load against a peer once.

        Raises:
            PeerError: a request failed.
        """
        fields = {"Host": server.address, "Content-Type": "application/json"}
        texts = self.texts[case.corpus]
        requests = [request_for(server.peer.path, fields, server.peer.body(text)) for text in texts]
        with load_on(server.address, requests, case) as load:
            answer = outcome_of(load, str(server.system), PeerError)
        self.say(f"turn {number + 1}: {server.system}: {answer['rate']:.1f}/s, P99 {answer['p99']:.0f} ms")
        return PeerRun(server.system, case, number, answer["rate"], answer["p50"], answer["p99"])

    def miss(self, peer: Name, why: str) -> None:
        """Exclude a peer."""
        self.say(f"{PEERS[peer].title} {why}")
        self.results.missing[peer] = why
        self.programs.pop(peer, None)


def sweep_in(file: Path) -> list[PeerRun]:
    """Read the sweep from an earlier run's file."""
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


def run_tsbatch(bench: Bench, case: Case, number: int) -> PeerRun:
    """Run the load against tsbatch once."""
    run = bench.run(RECOMMENDED, case, number)
    return PeerRun(None, case, number, run.rate, run.p50, run.p99)


def measure(plan: Plan, say: Say, earlier: Sequence[PeerRun] = ()) -> Results:
    """Measure everything, except the settings in an ``earlier`` sweep."""
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
    """Render the tables."""
    about, runs = figures["machine"], figures["runs"]
    text = (
        f"{about['cores']} cores ({about['cpu']}), torch {about['torch']}; {runs[0]['clients']} clients, mixed texts."
    )
    missing = [
        f"{figures['peers'][peer]['title']} was not measured: it {why}." for peer, why in figures["missing"].items()
    ]
    rows = [[*_who(run), f"{run['rate']:.1f}", f"{run['p99']:.0f}"] for run in figures["sweep"]]
    swept = table(["system", "settings", "requests/s", "P99 ms"], rows)
    return "\n\n".join([text, *missing, targets(wanted_of(figures)), _turns(figures), f"### The sweep\n\n{swept}"])


def _turns(figures: Mapping[str, Any]) -> str:
    own_rates = [run["rate"] for run in figures["runs"] if run["peer"] == OURS]
    rows = []
    for who, runs in _by_system(figures["runs"]):
        rates = [run["rate"] for run in runs]
        latency = f"{median(run['p50'] for run in runs):.0f} / {median(run['p99'] for run in runs):.0f}"
        ratio = "" if runs[0]["peer"] == OURS else ratios(own_rates, rates).text()
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


MIN_DYNAMIC: Final = 3.0
MIN_BEST: Final = 1.3


def wanted_of(figures: Mapping[str, Any]) -> list[Target]:
    """List the targets of the acceptance check, for each peer with dynamic batching and with its best settings."""
    own_rates = [run["rate"] for run in figures["runs"] if run["peer"] == OURS]
    wanted = []
    for peer, about in figures["peers"].items():
        own = [runs for _, runs in _by_system(figures["runs"]) if runs[0]["peer"] == peer]
        for what, least, some in (
            ("with dynamic batching", MIN_DYNAMIC, [runs for runs in own if runs[0]["batch"] == DYNAMIC]),
            ("at its best", MIN_BEST, own),
        ):
            rates = max(([run["rate"] for run in runs] for runs in some), key=median, default=None)
            if rates:
                wanted.append(Target(f"× {about['title']} {what}", least, ratios(own_rates, rates)))
    return wanted


def main(words: list[str]) -> int:
    """Measure, print, write; return exit code 1 if a target is missed."""
    parser = options("Compare tsbatch on TorchServe with other serving systems.")
    parser.add_argument("--quick", action="store_true", help="a check of some minutes that the benchmark works")
    parser.add_argument("--swept", type=Path, metavar="FILE", help="reuse the sweep in this --save file")
    chosen = parser.parse_args(words)
    os.environ["HF_HUB_OFFLINE"] = "1"
    plan, earlier = QUICK if chosen.quick else DEFAULT, sweep_in(chosen.swept) if chosen.swept else []
    figures = figures_of(chosen, lambda: measure(plan, progress(), earlier).figures())
    return deliver(chosen, figures, report(figures), PAGE, BEGIN, [] if chosen.quick else wanted_of(figures))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
