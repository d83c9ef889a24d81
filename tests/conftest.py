"""What holds for every test: its marker comes from its folder, and no setting of this machine reaches it."""

from __future__ import annotations

import os
import signal
import tempfile
from pathlib import Path

import pytest
from hypothesis import settings

from tsbatch.system import ports

HERE = Path(__file__).parent
SPEEDS = ("unit", "integration", "e2e", "acceptance")
FOREIGN = ("TSBATCH_", "TS_", "HF_", "TRANSFORMERS_", "LOG_LOCATION", "METRICS_LOCATION", "OMP_NUM_THREADS")

for name in [name for name in os.environ if name.startswith(FOREIGN)]:
    del os.environ[name]
WORKER = os.environ.get("PYTEST_XDIST_WORKER")
if WORKER:
    # It counts this process already (scripts/test.py); what tests start is not counted.
    os.environ.pop("COVERAGE_PROCESS_START", None)

# Before anything imports huggingface_hub, which reads it once.
os.environ["HF_HUB_OFFLINE"] = "1"
# Nor torch, whose OpenMP reads this once. Its threads would spin while they wait for each other, which is quick where
# they have the cores to themselves, and takes ten times as long where tests run side by side.
os.environ["OMP_WAIT_POLICY"] = "PASSIVE"
# Ray would start a whole cluster wherever one of its functions finds none.
os.environ["RAY_ENABLE_AUTO_CONNECT"] = "0"

# A shell ignores these for what it starts in the background, and every program started from here would too.
for ignored in ("SIGINT", "SIGQUIT"):
    number = getattr(signal, ignored, None)
    if number is not None and signal.getsignal(number) is signal.SIG_IGN:
        signal.signal(number, signal.default_int_handler if ignored == "SIGINT" else signal.SIG_DFL)

settings.register_profile("tsbatch", deadline=None, derandomize=bool(os.environ.get("CI")), print_blob=True)
settings.load_profile("tsbatch")


@pytest.hookimpl(tryfirst=True)  # xdist reads its groups in the same hook
def pytest_collection_modifyitems(config, items):
    side_by_side = config.pluginmanager.hasplugin("xdist")
    for item in items:
        folder, *below = item.path.relative_to(HERE).parts
        if folder in SPEEDS:
            item.add_marker(folder)
        if side_by_side:
            # A file's tests share what its fixtures made; those with servers would take each other's time.
            item.add_marker(pytest.mark.xdist_group(folder if folder == "e2e" else "/".join((folder, *below))))


@pytest.fixture(scope="session", autouse=True)
def state_folder():
    """State files of servers that tests start; the user's own are never seen."""
    with tempfile.TemporaryDirectory(prefix="tsbatch-tests-") as folder:
        os.environ["TSBATCH_STATE_DIR"] = folder
        yield Path(folder)


@pytest.fixture(autouse=True)
def unchanged_environ(state_folder):
    """Variables that a test sets are gone after it."""
    before = dict(os.environ)
    yield
    if os.environ != before:
        os.environ.clear()
        os.environ.update(before)


@pytest.fixture(scope="session", autouse=True)
def own_ports():
    """Processes that run tests side by side look for free ports in different places, lest two find the same one."""
    if WORKER:
        number, count = int(WORKER.removeprefix("gw")), int(os.environ["PYTEST_XDIST_WORKER_COUNT"])
        each = (ports.HIGHEST - ports.LOWEST) // count
        ports.LOWEST += number * each
        ports.HIGHEST = ports.LOWEST + each
