from __future__ import annotations

import os
import signal

import pytest

from tsbatch.system.signals import end_on_signals


def test_a_signal_interrupts_once_and_the_handlers_come_back():
    def work(done):
        with end_on_signals():
            try:
                os.kill(os.getpid(), signal.SIGTERM)
            finally:
                os.kill(os.getpid(), signal.SIGTERM)
                os.kill(os.getpid(), signal.SIGINT)
                done.append("cleaned")

    before, done = signal.getsignal(signal.SIGTERM), []
    with pytest.raises(KeyboardInterrupt):
        work(done)
    assert done == ["cleaned"]
    assert signal.getsignal(signal.SIGTERM) is before


def test_nohup_is_respected():
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with end_on_signals():
            os.kill(os.getpid(), signal.SIGHUP)
        assert signal.getsignal(signal.SIGHUP) == signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, before)
