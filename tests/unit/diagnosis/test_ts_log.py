from __future__ import annotations

import gzip
import math

import numpy as np
import pytest

from tests.unit.diagnosis.log_lines import NOON_MS, answered, flushing, refused, told
from tsbatch.diagnosis.ts_log import LogReader, log_files, read_log, size_of
from tsbatch.errors import UsageError


def batch(at, *, size=2, model="m_1.0", worker=9000):
    ids = [f"{at}-{number}" for number in range(size)]
    where = {"model": model, "worker": worker}
    lines = [*flushing(at, **where), *told(at + 40, ids, "40.5", **where)]
    for number, job in enumerate(ids):
        lines += answered(at + 42, job, 10 - number, 42, **where)
    return lines


def write(path, lines):
    text = "".join(f"{line}\n" for line in lines).encode()
    path.write_bytes(gzip.compress(text) if path.suffix == ".gz" else text)
    return path


def test_one_file_of_two_models(tmp_path):
    path = write(
        tmp_path / "ts_log.log",
        [*batch(100), *batch(200, worker=9001), *refused(250), *batch(300, model="other_2.0", worker=9002, size=1)],
    )
    busiest, other = read_log(path)
    assert (busiest.name, busiest.version, busiest.requests, busiest.batches) == ("m", "1.0", 5, 2)
    assert (busiest.refused, busiest.statuses) == (1, {200: 4, 503: 1})
    assert busiest.workers == {"W-9000-m_1.0": 0, "W-9001-m_1.0": 1}
    assert busiest.seconds == pytest.approx((250 - 90) / 1000)
    assert (other.name, other.version, other.requests) == ("other", "2.0", 1)

    samples = busiest.samples()
    assert (samples.sent * 1000 - NOON_MS).round(1).tolist() == [90, 91, 190, 191, 248]
    assert samples.latency.tolist() == [52, 51, 52, 51, 2]
    assert samples.assembly[:2].tolist() == [10, 9]
    assert samples.handler[:4].tolist() == [40.5] * 4
    assert math.isnan(samples.handler[4])
    assert samples.worker[:4].tolist() == [0, 0, 1, 1]


def test_without_a_handler_time_the_backend_time_stands_in(tmp_path):
    lines = [line for line in batch(100) if "MODEL_METRICS" not in line]
    (log,) = read_log(write(tmp_path / "ts_log.log", lines))
    assert log.samples().handler.tolist() == [42, 42]


def test_rotated_files_are_read_in_their_order(tmp_path):
    lines = [*batch(100), *batch(200), *batch(300)]
    cut = len(lines) // 3
    write(tmp_path / "ts_log.log", lines[2 * cut :])
    # A batch that is cut by the rotation is whole again only in the right order.
    write(tmp_path / "ts_log.30-Nov.log.gz", lines[: cut - 3])
    write(tmp_path / "ts_log.29-Nov.log.gz", lines[cut - 3 : 2 * cut])
    write(tmp_path / "ts_metrics.log", ["nothing of ours"])
    assert [path.name for path in log_files(tmp_path)] == ["ts_log.30-Nov.log.gz", "ts_log.29-Nov.log.gz", "ts_log.log"]
    (log,) = read_log(tmp_path)
    assert (log.requests, log.batches) == (6, 3)


def test_progress_counts_bytes_on_the_disk(tmp_path):
    write(tmp_path / "ts_log.log", batch(100) * 50)
    write(tmp_path / "ts_log.1.log.gz", batch(50))
    told = []
    read_log(tmp_path, told.append)
    assert sum(told) == size_of(tmp_path)


def test_a_last_line_without_end_and_a_gzip_file_still_being_written(tmp_path):
    path = tmp_path / "ts_log.log"
    path.write_bytes("\n".join(batch(100)[:-1]).encode())  # without the second copy of the last line
    assert read_log(path)[0].requests == 2
    whole = gzip.compress("".join(f"{line}\n" for line in batch(100) * 400).encode())
    (tmp_path / "ts_log.1.log.gz").write_bytes(whole[:-9])
    assert read_log(tmp_path)[0].requests >= 2


def test_more_requests_than_are_kept_leave_a_fair_sample(tmp_path):
    reader = LogReader(limit=4000)
    generator = np.random.default_rng(0)
    waits = generator.exponential(20, 30_000)
    for at, wait in enumerate(waits):
        lines = [*flushing(at * 100), *answered(at * 100 + 9, "a", float(wait), 9)]
        reader.feed([line.encode() for line in lines])
    (log,) = reader.finish()
    samples = log.samples()
    assert (log.requests, log.batches) == (30_000, 30_000)
    assert 1000 <= len(samples) <= 4000
    assert log.share < 1
    assert log.seconds == pytest.approx(3000, abs=1)
    assert np.median(samples.latency) == pytest.approx(np.median(waits) + 9, rel=0.1)
    assert max(log._columns["ticket"]) < log.share
    # Stretches of neighbours, not single requests.
    assert np.median(np.diff(samples.sent)) == pytest.approx(0.1, abs=0.05)


def test_what_is_no_log_is_said_so(tmp_path):
    with pytest.raises(UsageError, match="no such file or folder; expected a TorchServe log folder"):
        read_log(tmp_path / "nowhere")
    with pytest.raises(UsageError, match=r"no ts_log\.log there"):
        read_log(tmp_path)
    (tmp_path / "ts_log.log").write_text("just text\n")
    with pytest.raises(UsageError, match=r"no request in ts_log\.log; expected lines like .*Waiting time ns"):
        read_log(tmp_path)
    (tmp_path / "ts_log.1.log.gz").write_bytes(b"no gzip at all, though its name says so")
    with pytest.raises(UsageError, match=r"ts_log\.1\.log\.gz is damaged"):
        read_log(tmp_path)
