"""The acceptance checks: one row for each claim of the project, grouped by capability."""

from __future__ import annotations

from dataclasses import dataclass

import _venv

TESTS = "tests/acceptance"


@dataclass(frozen=True)
class Check:
    """One claim and what proves it.

    Attributes:
        capability: the group; also the folder below ``tests/acceptance`` that holds its own tests.
        name: unique within the group; ``--only NAME`` selects it.
        title: what it proves, in a few words.
        tests: what pytest runs: files of the group's folder by their stem, other files by their path, as patterns.
        scripts: programs that exit with 0 if the claim holds and, with ``--json``, print their figures as one JSON
            object on the last line.
        minutes: the timeout of each part.
    """

    capability: str
    name: str
    title: str
    tests: tuple[str, ...] = ()
    scripts: tuple[str, ...] = ()
    minutes: float = 20

    def files(self) -> list[str]:
        """The test files, relative to the root of the repository.

        Raises:
            FileNotFoundError: a pattern matches no file.
        """
        found = []
        for pattern in self.tests:
            path = pattern if "/" in pattern else f"{TESTS}/{self.capability}/{pattern}.py"
            matches = sorted(_venv.ROOT.glob(path))
            if not matches:
                raise FileNotFoundError(path)
            found += [match.relative_to(_venv.ROOT).as_posix() for match in matches]
        return found


CHECKS = (
    Check(
        "install",
        "quickstart",
        "quickstart in a fresh clone without Java",
        tests=("test_quickstart_in_a_fresh_clone",),
        minutes=40,
    ),
    Check(
        "install",
        "suite",
        "scripts/test.py in a fresh clone, at most 15 minutes, with a line coverage of at least 95 %",
        tests=("test_the_suite_in_a_fresh_clone",),
        minutes=45,
    ),
    Check(
        "install",
        "stock",
        "a built wheel with the stock archiver and server",
        tests=("test_wheel_with_the_stock_programs",),
        minutes=30,
    ),
    Check(
        "install",
        "older-version",
        "a server and archives of an older version still work",
        tests=("test_detached_server_of_an_older_version", "tests/integration/test_old_files.py"),
    ),
    Check("handler", "isolation", "a batch of eight with three bad requests", tests=("test_isolation_on_a_server",)),
    Check(
        "handler",
        "inputs",
        "every input shape at every address, including gRPC",
        tests=("test_every_shape_on_every_address",),
    ),
    Check(
        "handler",
        "misbehaving",
        "misbehaving subclasses fail only the guilty request",
        tests=("test_misbehaving_subclasses", "tests/e2e/test_server.py"),
    ),
    Check(
        "handler",
        "model-folder",
        "the model folder may be removed after initialize",
        tests=("test_the_model_folder_may_go",),
    ),
    Check(
        "handler",
        "latency-split",
        "queue wait, assembly wait and handler time match known answers",
        tests=("test_latency_split",),
    ),
    Check(
        "handler",
        "own-handlers",
        "the handlers in the docs run, even with ts blocked",
        tests=("tests/integration/test_examples.py",),
    ),
    Check(
        "handler",
        "closing",
        "how often close() is called",
        tests=("test_how_often_close_is_reached",),
        scripts=("benchmarks/closing.py",),
        minutes=90,
    ),
    Check(
        "handler",
        "overhead",
        "the cost of the handler itself",
        scripts=("benchmarks/handler_overhead.py", "benchmarks/core_overhead.py"),
        minutes=60,
    ),
    Check(
        "speed",
        "serving",
        "faster than three other handlers, and close to the limit",
        scripts=("benchmarks/serving.py",),
        minutes=40,
    ),
    Check(
        "speed",
        "workers",
        "two workers with default settings are not slower than one",
        tests=("test_two_workers_on_two_cores",),
    ),
    Check(
        "speed",
        "peers",
        "faster than four other serving systems",
        scripts=("benchmarks/peers.py",),
        minutes=60,
    ),
    Check(
        "speed",
        "packing",
        "packed, bucketed and padded batches give the one-by-one answers",
        tests=("tests/integration/test_packing.py",),
    ),
    Check(
        "speed",
        "planner",
        "the planner finds the best partition and corrects itself",
        scripts=("benchmarks/micro_batching.py",),
    ),
    Check(
        "speed",
        "load-time",
        "a large model is ready quickly, and its weights are shared",
        scripts=("benchmarks/load_time.py",),
        minutes=40,
    ),
    Check(
        "speed",
        "engines",
        "--engine auto refuses worse answers",
        tests=("test_torch_compile_answers", "tests/integration/test_engines.py"),
        scripts=("benchmarks/engines.py",),
        minutes=40,
    ),
    Check("speed", "profile", "where a worker's wall time goes", scripts=("benchmarks/worker_profile.py",)),
    Check(
        "lint",
        "claims",
        "lint finds what is wrong, and TorchServe behaves as lint says",
        tests=("test_lint_against_torchserve",),
    ),
    Check(
        "lint",
        "effective",
        "effective agrees with TorchServe, layer by layer",
        tests=("test_effective_against_torchserve",),
    ),
    Check(
        "packaging",
        "archives",
        "archives verify, reproduce, and are never half written",
        tests=("test_archives_verify_and_reproduce", "tests/e2e/test_formats.py"),
    ),
    Check(
        "packaging",
        "bundle",
        "a bundled archive runs where tsbatch is not installed",
        tests=("test_bundled_archive_on_a_bare_python",),
    ),
    Check("packaging", "large", "a 2 GB model compared with the stock tools", tests=("test_two_gigabyte_model",)),
    Check(
        "packaging",
        "new",
        "tsbatch new works as the README says",
        tests=("test_new_as_the_readme_says",),
    ),
    Check(
        "loading",
        "slow",
        "a load that is too slow is reported promptly, with the value to set",
        tests=("test_a_load_that_is_too_slow",),
    ),
    Check(
        "loading",
        "broken",
        "fourteen broken archives: the cause in the first line",
        tests=("test_broken_archives_name_their_cause",),
    ),
    Check(
        "serving",
        "reconfigure",
        "reconfigure under load loses no request",
        tests=("test_reconfigure_under_load",),
    ),
    Check(
        "diagnosis",
        "regimes",
        "six regimes: the split, the diagnosis and the change that helps most",
        tests=("test_six_regimes",),
        minutes=40,
    ),
    Check(
        "diagnosis",
        "foreign-handler",
        "a handler without tsbatch gets the same diagnosis",
        tests=("test_logs_of_a_foreign_handler",),
    ),
    Check(
        "diagnosis",
        "large-log",
        "a 2 GB log in constant memory",
        scripts=("benchmarks/diagnose_log.py",),
    ),
    Check(
        "bench",
        "load-generator",
        "the load generator compared with wrk, stalls, and its own cost",
        tests=("test_load_generator_against_wrk", "test_commands_of_the_bench_page"),
        scripts=("benchmarks/load_generator.py",),
        minutes=25,
    ),
    Check(
        "bench",
        "compare",
        "compare on simulated pairs; figures against NumPy and SciPy",
        tests=(
            "test_compare_on_simulated_pairs",
            "tests/unit/bench/test_statistics.py",
            "tests/unit/bench/test_comparison.py",
        ),
    ),
    Check(
        "report",
        "browser",
        "the HTML report in a real browser, at phone and desktop sizes",
        tests=("test_report_in_a_browser",),
    ),
    Check(
        "tasks",
        "pipelines",
        "the tasks answer as transformers.pipeline does, in 5.x and in 4.57",
        tests=("test_*_transformers457", "test_segmentation_as_the_pipeline", "tests/integration/tasks/test_*.py"),
        minutes=60,
    ),
    Check(
        "tasks",
        "cat",
        "a real TorchServe recognises a cat, sent in four ways",
        tests=("test_a_cat_is_a_cat",),
    ),
    Check(
        "tasks",
        "news",
        "news topics: accuracy 0.93 on held-out articles, the same when served",
        tests=("test_news_topics",),
    ),
    Check(
        "tasks",
        "one-broken",
        "for each task, eight requests, one of them broken",
        tests=("test_one_broken_of_eight",),
    ),
    Check(
        "tasks",
        "broken-files",
        "broken images and audio files: no 5xx, no worker death",
        tests=("test_broken_images", "test_broken_sounds"),
    ),
    Check(
        "tasks",
        "speed",
        "each task compared with single requests and TorchServe's own handler",
        scripts=("benchmarks/tasks.py",),
        minutes=60,
    ),
    Check(
        "simulation",
        "simulator",
        "the simulator compared with a real TorchServe, for 24 settings and loads",
        tests=("test_simulator_against_torchserve", "tests/e2e/test_simulate.py"),
        minutes=45,
    ),
    Check(
        "simulation",
        "plan",
        "a plan for 10, 100 and 1000 times a recorded load, compared with theory",
        tests=(
            "test_plan_of_a_recorded_load",
            "tests/unit/simulation/test_planner.py",
            "tests/unit/simulation/test_simulator.py",
        ),
    ),
    Check("simulation", "speed", "simulated requests per second", scripts=("benchmarks/simulate.py",)),
    Check(
        "tuning",
        "brute-force",
        "the tuner compared with brute force and Optuna's sampler",
        tests=("test_tuner_against_brute_force", "tests/e2e/test_tune.py"),
        scripts=("benchmarks/tuning.py",),
        minutes=90,
    ),
    Check(
        "tuning",
        "bad-start",
        "step by step from a bad start",
        tests=("test_tuning_from_a_bad_start",),
        minutes=40,
    ),
    Check(
        "tuning",
        "nothing-to-gain",
        "with nothing to gain, nothing changes; noise produces no false winner",
        tests=("test_nothing_to_gain", "tests/unit/tuning/test_significance.py"),
        minutes=30,
    ),
    Check(
        "tuning",
        "killed",
        "the tuner, a worker and the server killed twenty times",
        tests=("test_killed_tuner_worker_server",),
        minutes=60,
    ),
    Check(
        "ray",
        "same-answers",
        "the same archives on TorchServe and on Ray Serve: the same answers",
        tests=(
            "test_same_answers_as_torchserve",
            "test_deployment_as_documented",
            "test_haproxy",
            "test_surface_on_ray",
        ),
        minutes=40,
    ),
    Check(
        "ray",
        "cluster",
        "a three-node Ray cluster loses a node, gains one and is updated, all under load",
        tests=("test_cluster_under_load",),
    ),
    Check(
        "ray",
        "speed",
        "tsbatch on Ray compared with Ray's own batching and with TorchServe",
        scripts=("benchmarks/ray_serve.py",),
        minutes=40,
    ),
    Check(
        "ray",
        "replicas",
        "1, 2, 4 and 8 replicas, compared with what plan predicts",
        scripts=("benchmarks/ray_replicas.py",),
    ),
    Check(
        "ray",
        "without-ray",
        "without Ray everything else works",
        tests=("test_everything_else_without_ray", "tests/unit/test_public_names.py"),
    ),
    Check(
        "kserve",
        "manifests",
        "KServe manifests for three models, and what their pods would run",
        tests=("test_manifests_against_kserve", "test_what_a_pod_runs"),
        minutes=30,
    ),
)


def capabilities() -> list[str]:
    """The groups, in the order of the table."""
    return list(dict.fromkeys(check.capability for check in CHECKS))


def table() -> str:
    """The checks as a Markdown table; CONTRIBUTING.md holds it."""
    rows = [f"| `{check.capability} --only {check.name}` | {check.title} | {check.minutes:g} |" for check in CHECKS]
    return "\n".join(["| `scripts/acceptance.py …` | proves | timeout of a part (min) |", "| --- | --- | --- |", *rows])
