"""Closing, in processes that are really told to end."""

from __future__ import annotations

import signal
import socket
import subprocess
import sys
import textwrap
import threading
import time

import pytest

from tsbatch.worker.shutdown import close_on_hang_up

posix = pytest.mark.skipif(sys.platform == "win32", reason="signals and poll are POSIX")

HEAD = """
import os, signal, socket, sys, threading, time
from tsbatch.worker.shutdown import close_on_hang_up, close_when_told

done = []
def close():
    if not done:
        print("closed", flush=True)
        done.append(1)
"""


@pytest.fixture
def process():
    """Start Python code; whatever happens, nothing is left of it."""
    started = []

    def start(code, **options):
        child = subprocess.Popen(
            [sys.executable, "-c", HEAD + textwrap.dedent(code)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            **options,
        )
        started.append(child)
        return child

    yield start
    for child in started:
        child.kill()
        child.communicate(timeout=10)


def ready(child):
    assert child.stdout.readline() == "ready\n", child.stderr.read()


def test_at_the_end_of_the_process(process):
    child = process("close_when_told(close)")
    assert child.communicate(timeout=60)[0] == "closed\n"
    assert child.returncode == 0


def test_after_an_exception(process):
    child = process("close_when_told(close); raise ValueError('x')")
    assert child.communicate(timeout=60)[0] == "closed\n"
    assert child.returncode == 1


@posix
@pytest.mark.parametrize("busy", ["time.sleep(60)", "while True: sum(range(1000))"])
def test_sigterm_closes_once_and_ends_the_process_as_before(process, busy):
    child = process(f"close_when_told(close); print('ready', flush=True)\n{busy}")
    ready(child)
    child.terminate()
    out, err = child.communicate(timeout=60)
    assert out == "closed\n"
    assert err == ""
    assert child.returncode == -signal.SIGTERM


@posix
def test_a_close_that_raises_does_not_keep_the_process_alive(process):
    child = process(
        """
        def broken():
            print("closed", flush=True)
            raise ValueError("cannot")
        close_when_told(broken); print("ready", flush=True)
        while True:
            try:
                time.sleep(60)
            except ValueError:
                pass
        """
    )
    ready(child)
    child.terminate()
    assert child.communicate(timeout=60)[0] == "closed\n"
    assert child.returncode == -signal.SIGTERM


@posix
def test_ctrl_c_closes_too(process):
    child = process("close_when_told(close); print('ready', flush=True); time.sleep(60)")
    ready(child)
    child.send_signal(signal.SIGINT)
    assert child.communicate(timeout=60)[0] == "closed\n"


@posix
def test_somebody_elses_signal_handler_stays(process):
    child = process(
        """
        mine = lambda number, frame: sys.exit(7)
        signal.signal(signal.SIGTERM, mine)
        close_when_told(close)
        assert signal.getsignal(signal.SIGTERM) is mine
        print("ready", flush=True); time.sleep(60)
        """
    )
    ready(child)
    child.terminate()
    assert child.communicate(timeout=60)[0] == "closed\n", "exit still closes"
    assert child.returncode == 7


def test_from_another_thread_no_signal_is_touched(process):
    child = process(
        """
        before = signal.getsignal(signal.SIGTERM)
        thread = threading.Thread(target=close_when_told, args=(close,)); thread.start(); thread.join()
        assert signal.getsignal(signal.SIGTERM) is before
        """
    )
    assert child.communicate(timeout=60) == ("closed\n", "")


@posix
@pytest.mark.parametrize("family", ["AF_UNIX", "AF_INET"])
def test_a_hang_up_closes_while_the_main_thread_computes(process, family):
    child = process(
        f"""
        server = socket.socket(socket.{family})
        server.bind({"''" if family == "AF_UNIX" else "('127.0.0.1', 0)"})
        server.listen()
        far = socket.socket(socket.{family}); far.connect(server.getsockname())
        near, _ = server.accept()
        close_on_hang_up(near, close)
        print("ready", flush=True)
        far.sendall(b"a request that the busy worker does not read")
        time.sleep(0.2)
        print("closed too early" if done else "still open", flush=True)
        far.close()
        until = time.time() + 30
        while not done and time.time() < until:  # computing, never looking at the socket
            sum(range(1000))
        os._exit(0)  # SIGKILL gives atexit no chance either
        """
    )
    out, err = child.communicate(timeout=90)
    assert err == ""
    assert out == "ready\nstill open\nclosed\n"


@pytest.mark.parametrize("connection", [None, object()])
def test_what_is_no_socket_is_not_watched(connection):
    before = threading.active_count()
    close_on_hang_up(connection, lambda: None)
    assert threading.active_count() == before


def test_a_closed_socket_is_not_watched():
    connection = socket.socket()
    connection.close()
    before = threading.active_count()
    close_on_hang_up(connection, lambda: None)
    assert threading.active_count() == before


@posix
def test_without_a_thread_to_be_had_it_goes_on(monkeypatch):
    def no_thread(self):
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", no_thread)
    near, far = socket.socketpair()
    with near, far:
        close_on_hang_up(near, lambda: None)


@posix
def test_the_watching_thread_uses_no_time():
    near, far = socket.socketpair()
    closed = threading.Event()
    try:
        close_on_hang_up(near, closed.set)
        before = time.process_time()
        time.sleep(0.5)
        assert time.process_time() - before < 0.2
        assert not closed.is_set()
    finally:
        far.close()
    assert closed.wait(5)
    near.close()


WORKER = """
import pathlib
from tsbatch.worker.shutdown import Closer

far, near = socket.socketpair()
closer = Closer()
wait = time.sleep
"""


@posix
@pytest.mark.parametrize("busy", ["time.sleep(60)", "[sum(range(1000)) for _ in range(10_000_000)]"])
def test_a_batch_that_reaches_the_time_limit_closes_and_ends_the_worker(process, busy):
    child = process(
        f"""{WORKER}
closer.add(close)
closer.allow(1)
started = time.time()
with closer.on_duty(near):
    {busy}
"""
    )
    started = time.monotonic()
    out, err = child.communicate(timeout=50)
    assert out == "closed\n"
    assert "responseTimeout" in err
    assert child.returncode == 1
    assert time.monotonic() - started < 30


@posix
@pytest.mark.parametrize(
    "code",
    [
        "closer.allow(1)\nwith closer.on_duty(near): time.sleep(1.5)",  # nothing to close
        "closer.add(close); closer.allow(None)\nwith closer.on_duty(near): time.sleep(1.5)",
        "closer.add(close); closer.allow(1)\nfor _ in range(8):\n  with closer.on_duty(near): time.sleep(.2)\nwait(1)",
    ],
    ids=["nothing to close", "no limit known", "eight quick batches"],
)
def test_a_worker_that_need_not_end_goes_on(process, code):
    child = process(f"{WORKER}\n{code}\nprint('answered', flush=True)\nos._exit(0)")
    assert child.communicate(timeout=60)[0] == "answered\n"
    assert child.returncode == 0


@posix
def test_a_busy_worker_whose_server_is_gone_closes_and_ends(process):
    child = process(f"{WORKER}\ncloser.add(close)\nwith closer.on_duty(near): far.close(); time.sleep(60)")
    assert child.communicate(timeout=50)[0] == "closed\n"
    assert child.returncode == 1


@posix
def test_a_worker_that_leaves_by_itself_is_let_go(process):
    child = process(
        f"{WORKER}\ncloser.add(close)\nwith closer.on_duty(near): pass\nfar.close()\ntime.sleep(0.2)\nsys.exit(3)"
    )
    child.communicate(timeout=60)
    assert child.returncode == 3


@posix
def test_the_process_does_not_end_before_a_closing_is_finished(process):
    child = process(
        f"""{WORKER}
from tsbatch.worker.shutdown import close_when_told
begun = threading.Event()
def slow():
    begun.set(); time.sleep(1); print("closed", flush=True)
closer.add(slow)
close_when_told(closer.close)
with closer.on_duty(near): pass
far.close()
begun.wait()
"""
    )
    assert child.communicate(timeout=60)[0] == "closed\n"


@posix
def test_a_close_that_raises_is_logged_and_the_worker_still_ends(process):
    child = process(f"{WORKER}\ncloser.add(lambda: 1 / 0)\nwith closer.on_duty(near): far.close(); time.sleep(60)")
    assert "ZeroDivisionError" in child.communicate(timeout=50)[1]
    assert child.returncode == 1


@posix
@pytest.mark.parametrize("ending", ["os.kill(os.getpid(), signal.SIGKILL)", "sys.exit(0)"])
def test_when_gone_runs_after_any_end_and_not_before(process, tmp_path, monkeypatch, ending):
    monkeypatch.setenv("TSBATCH_SERVER", "mark")
    sign, mark = tmp_path / "it is gone", tmp_path / "mark"
    child = process(
        f"""{WORKER}
closer.when_gone(["touch", {str(sign)!r}])
closer.when_gone(["sh", "-c", 'echo "${{TSBATCH_SERVER-none}}" > "$0"', {str(mark)!r}])
time.sleep(0.5)
assert not os.path.exists({str(sign)!r})
{ending}
"""
    )
    _, err = child.communicate(timeout=60)
    assert not err
    deadline = time.monotonic() + 20
    while not (sign.exists() and mark.exists() and mark.read_text()):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    assert mark.read_text() == "none\n", "tsbatch stop would kill it"
