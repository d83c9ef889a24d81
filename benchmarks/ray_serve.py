#!/usr/bin/env python3
"""Compare one model with tsbatch on Ray Serve, with plain Ray Serve as in its docs, and with tsbatch on TorchServe.

    python benchmarks/ray_serve.py                 print tables; takes about 9 minutes
    python benchmarks/ray_serve.py --quick         a two-minute check that the benchmark works
    python benchmarks/ray_serve.py --write         write tables into docs/outgrow.md

The plain deployment is benchmarks/peer_apps/with_ray.py: ``@serve.batch``, padded to the longest text of a batch, with
the better of one replica with all cores and one replica per core. tsbatch runs the archive that docs/speed.md
recommends, the same on both engines. On Ray Serve, both run behind Ray's own proxies and behind HAProxy. The benchmark
checks that all return the same vectors; each system runs only during its turn.
"""

from __future__ import annotations

import os
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import median
from typing import Any, Final

import httpx
from _bench import Bench, Case, load_on, outcome_of, request_for
from _corpus import corpora, minilm_tokens
from _peers import EXAMPLE, MIN_COSINE, PeerError, PeerSystem, cosine, serving
from _ratios import Spread, ratios, turn
from _ray import PATH, on_ray
from _systems import RECOMMENDED, model_dir
from _tables import Say, Target, deliver, figures_of, machine, options, progress, table, targets
from peers import expected_vector

from tsbatch.ray import haproxy
from tsbatch.system.ports import free_ports
from tsbatch.worker.resources import usable_cores

COUNT: Final = 512
PAGE: Final = Path(__file__).resolve().parent.parent / "docs" / "outgrow.md"
BEGIN: Final = "<!-- measured by benchmarks/ray_serve.py -->"
MIN_RATIO: Final = 3.0
"""Required ratio to the padded deployment, with texts of mixed lengths."""
DYNAMIC: Final = 32
SECONDS_TO_SETTLE: Final = 5
OURS: Final = "tsbatch on Ray Serve"
PLAIN: Final = "Ray Serve, padded"
TORCHSERVE: Final = "tsbatch on TorchServe"
BEHIND: Final = ", HAProxy"
EVERY: Final = (OURS + BEHIND, PLAIN, TORCHSERVE, OURS, PLAIN + BEHIND)
PROGRAMS: Final = Path(sys.executable).parent


@dataclass(frozen=True)
class Plan:
    """The size of the benchmark.

    Attributes:
        turns: turns of all systems.
        swept: the load of the sweep.
        case: the load of the turns.
    """

    turns: int
    swept: Case
    case: Case


DEFAULT: Final = Plan(3, Case("mixed", 64, 128, 0.0), Case("mixed", 64, 256, 5.0))
QUICK: Final = Plan(1, Case("mixed", 32, 32, 0.0), Case("mixed", 32, 64, 0.0))


@dataclass(frozen=True, slots=True)
class Run:
    """The figures of one run of a system; times are in ms."""

    who: str
    settings: str
    turn: int
    rate: float
    p50: float
    p99: float


@dataclass
class Comparison:
    """The comparison of all systems.

    Attributes:
        texts: the corpora by name.
        say: receives progress messages.
        expected: the correct vector for the example.
        swept: the sweep's runs of the padded deployment.
        runs: the runs of the turns.
    """

    texts: Mapping[str, Sequence[str]]
    say: Say
    expected: Sequence[float] = field(default_factory=expected_vector)
    swept: list[Run] = field(default_factory=list)
    runs: list[Run] = field(default_factory=list)

    def sweep(self, case: Case) -> PeerSystem:
        """Find the better setting of the padded deployment."""
        cores = usable_cores()
        settings = [PeerSystem("ray", *share, DYNAMIC) for share in dict.fromkeys([(1, cores), (cores, 1)])]
        for system in settings:
            with self.padded(system) as address:
                self.swept.append(self.run(PLAIN, system.settings, address, "/predict", case, 0))
        return max(zip(self.swept, settings, strict=True), key=lambda pair: pair[0].rate)[1]

    @contextmanager
    def padded(self, system: PeerSystem, *, behind: bool = False) -> Iterator[str]:
        """Run the padded deployment in this environment for one turn, optionally behind HAProxy."""
        with serving(system, PROGRAMS, self.expected, _with_haproxy if behind else lambda _: {}) as server:
            # HAProxy learns of the replicas one by one, and closes connections each time.
            time.sleep(SECONDS_TO_SETTLE if behind else 0)
            yield server.address

    def take_turns(self, plan: Plan, best: PeerSystem, bench: Bench, archive: Path) -> None:
        """Run all systems, turn by turn."""
        for number in range(plan.turns):
            for who in turn(EVERY, number):
                if who == TORCHSERVE:
                    bench.start(RECOMMENDED)
                    run = bench.run(RECOMMENDED, plan.case, number)
                    self.runs.append(Run(TORCHSERVE, RECOMMENDED.settings, number, run.rate, run.p50, run.p99))
                    bench.end(RECOMMENDED)
                elif who.startswith(OURS):
                    with on_ray(archive, *["--haproxy"] * who.endswith(BEHIND)) as deployed:
                        self.check(deployed.address)
                        self.runs.append(self.run(who, _replicas(), deployed.address, PATH, plan.case, number))
                else:
                    with self.padded(best, behind=who.endswith(BEHIND)) as address:
                        self.runs.append(self.run(who, best.settings, address, "/predict", plan.case, number))

    def check(self, address: str) -> None:
        """Check that tsbatch on Ray returns the correct vector."""
        answer = httpx.post(f"http://{address}{PATH}", json={"inputs": EXAMPLE}, trust_env=False, timeout=30)
        found = cosine(answer.raise_for_status().json()["embedding"], self.expected)
        if found < MIN_COSINE:
            raise PeerError(f"the answer of tsbatch on Ray differs from the expected vector: cosine {found:.4f}")

    def run(self, who: str, settings: str, address: str, path: str, case: Case, number: int) -> Run:
        """Run the load against an address once."""
        fields = {"Host": address, "Content-Type": "application/json"}
        requests = [request_for(path, fields, {"inputs": text}) for text in self.texts[case.corpus]]
        with load_on(address, requests, case) as load:
            answer = outcome_of(load, who, PeerError)
        self.say(f"turn {number + 1}: {who}: {settings}: {answer['rate']:.1f}/s, P99 {answer['p99']:.0f} ms")
        return Run(who, settings, number, answer["rate"], answer["p50"], answer["p99"])


def _with_haproxy(folder: Path) -> dict[str, str]:
    """Build the environment variables that ``ray deploy --local --haproxy`` sets."""
    haproxy.make_folder(folder)
    return {**haproxy.environment(folder), **haproxy.ports(*free_ports(2))}


def _replicas() -> str:
    """Describe the recommended settings in Ray's terms: one core per replica."""
    return RECOMMENDED.settings.replace("workers", "replicas").replace("default threads", "1 thread")


def measure(plan: Plan, say: Say) -> dict[str, Any]:
    """Measure everything."""
    texts = corpora(COUNT, minilm_tokens(model_dir()))
    comparison = Comparison(texts, say)
    with tempfile.TemporaryDirectory(prefix="tsbatch-ray-") as folder:
        say("packaging")
        archive = RECOMMENDED.archive(Path(folder))
        (kept := Path(folder, "kept")).mkdir()
        with Bench(kept, texts, say) as bench:  # it deletes the archives that it packages itself
            best = comparison.sweep(plan.swept)
            comparison.take_turns(plan, best, bench, archive)
    return {
        "schema": 1,
        "machine": machine(),
        "case": asdict(plan.case),
        "sweep": [asdict(run) for run in comparison.swept],
        "runs": [asdict(run) for run in comparison.runs],
    }


def report(figures: Mapping[str, Any]) -> str:
    """Render the tables."""
    about = figures["machine"]
    clients = figures["case"]["clients"]
    text = f"{about['cores']} cores ({about['cpu']}), torch {about['torch']}; {clients} clients, mixed texts."
    rows = []
    first = OURS + BEHIND
    for who in EVERY:
        runs = [run for run in figures["runs"] if run["who"] == who]
        latency = f"{median(run['p50'] for run in runs):.0f} / {median(run['p99'] for run in runs):.0f}"
        ratio = "" if who == first else ratios(_rates(figures, first), _rates(figures, who)).text()
        rows.append([who, runs[0]["settings"], Spread.of(_rates(figures, who)).text(1), latency, ratio])
    head = ["system", "settings", "requests/s", "P50 / P99 ms", "the first is × as fast"]
    return "\n\n".join([text, targets(wanted_of(figures)), table(head, rows)])


def _rates(figures: Mapping[str, Any], who: str) -> list[float]:
    return [run["rate"] for run in sorted(figures["runs"], key=lambda run: int(run["turn"])) if run["who"] == who]


def wanted_of(figures: Mapping[str, Any]) -> list[Target]:
    """List the target: the ratio to the deployment of Ray's docs, on a Ray cluster with default settings."""
    return [
        Target(f"{OURS}{BEHIND}, × {PLAIN}", MIN_RATIO, ratios(_rates(figures, OURS + BEHIND), _rates(figures, PLAIN)))
    ]


def main(words: list[str]) -> int:
    """Measure, print, write; return exit code 1 if the target is missed."""
    parser = options("Compare tsbatch on Ray Serve with plain Ray Serve and with tsbatch on TorchServe.")
    parser.add_argument("--quick", action="store_true", help="a two-minute check that the benchmark works")
    chosen = parser.parse_args(words)
    os.environ["HF_HUB_OFFLINE"] = "1"
    figures = figures_of(chosen, lambda: measure(QUICK if chosen.quick else DEFAULT, progress()))
    return deliver(chosen, figures, report(figures), PAGE, BEGIN, [] if chosen.quick else wanted_of(figures))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
