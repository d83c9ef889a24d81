from __future__ import annotations

import json

import pytest

from tests.unit.diagnosis.log_lines import answered, flushing, told
from tests.unit.report.results import make_result
from tsbatch.cli.exit_codes import BAD_INPUT, FINE
from tsbatch.cli.program import main


@pytest.fixture
def folder(tmp_path):
    lines = []
    for number in range(40):
        at, job = 150 * number, f"job-{number}"
        lines += flushing(at) + told(at + 40, [job], "40") + answered(at + 42, job, 100, 42)
    (tmp_path / "ts_log.log").write_text("".join(f"{line}\n" for line in lines))
    return tmp_path


def test_for_a_person(folder, capsys):
    assert main(["diagnose", str(folder)]) == FINE
    out, said = capsys.readouterr()
    lines = out.splitlines()
    assert lines[0].startswith("m 1.0: sequential client. A single client sends its next request only after")
    assert "Next single change: maxBatchDelay 100 → 1" in lines
    assert "    tsbatch reconfigure m --max-batch-delay 1" in lines
    assert "    maxBatchDelay: 1" in lines
    for heading in ("Where the time goes", "Over time (means in ms)", "Evidence", "What would prove it wrong"):
        assert any(line.startswith(heading) for line in lines), heading
    assembly = next(line for line in lines if line.startswith("assembly"))
    assert assembly.split() == ["assembly", "100.0", "70", "100.0", "100.0", "100.0"]
    assert "reading" in said


def test_as_json(folder, capsys):
    assert main(["diagnose", str(folder / "ts_log.log"), "--model", "m/1.0", "--json"]) == FINE
    found = json.loads(capsys.readouterr().out)
    assert (found["schema"], found["kind"], found["regime"]) == (1, "diagnosis", "sequential client")
    assert found["advice"]["change"] == {"setting": "maxBatchDelay", "old": 100, "new": 1}
    assert found["advice"]["command"] == "tsbatch reconfigure m --max-batch-delay 1"


def test_as_a_page(folder, tmp_path):
    waste = "x - PaddingWaste.Percent:25.0|#ModelName:m,Level:Model|#hostname:h,timestamp:1"
    (folder / "model_metrics.log").write_text(f"{waste}\n")
    page = tmp_path / "report.html"
    assert main(["diagnose", str(folder), "--html", str(page)]) == FINE
    text = page.read_text(encoding="utf-8")
    assert "m 1.0: sequential client. A single client sends" in text
    assert "25.0% of the computed lengths were padding" in text


def test_a_load_tests_file_as_a_page(tmp_path):
    make_result(model="embed").save(tmp_path / "a.json")
    page = tmp_path / "report.html"
    assert main(["diagnose", str(tmp_path / "a.json"), "--html", str(page)]) == FINE
    assert "<title>tsbatch bench: embed 1.0</title>" in page.read_text(encoding="utf-8")


def test_a_page_that_cannot_be_written_is_told_before_the_work(folder, tmp_path, capsys):
    assert main(["diagnose", str(folder), "--html", str(tmp_path / "no" / "r.html")]) == BAD_INPUT
    (line,) = capsys.readouterr().err.splitlines()
    assert "there is no such folder" in line


@pytest.mark.parametrize(
    "source, says",
    [
        (["nowhere"], "no such file or folder"),
        ([r"C:\logs"], "no such file or folder"),
        (["http://"], "is not an address"),
        ([], "no server named"),
    ],
)
def test_what_cannot_be_diagnosed(source, says, capsys):
    assert main(["diagnose", *source]) == BAD_INPUT
    (line,) = capsys.readouterr().err.splitlines()
    assert says in line
