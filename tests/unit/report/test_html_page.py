"""The whole page: self-contained, escaped, small, and each chart with its table."""

from __future__ import annotations

import re
from html.parser import HTMLParser

import pytest

from tests.unit.report.results import make_result, make_samples
from tsbatch.diagnosis.diagnosis import diagnose
from tsbatch.diagnosis.model_facts import Known
from tsbatch.errors import UsageError
from tsbatch.report.bench_report import report_of_bench
from tsbatch.report.diagnosis_report import report_of_diagnosis
from tsbatch.report.html_page import cell, check_path, render, save
from tsbatch.report.tables import BY_BATCHES, BY_SERVER, settings_of_diagnosis, settings_of_target

HOSTILE = "</title></style><script>alert(1)</script><img src=x onerror=alert(2)>\"'&{{ 7 * 7 }}"
RESOURCES = {"src", "srcset", "data", "poster", "action", "xlink:href"}
VOID = {"meta", "link", "br", "img"}


class Read(HTMLParser):
    """Tags with their attributes, texts, and whether every element that was opened is closed."""

    def __init__(self, page):
        super().__init__()
        self.tags, self.texts, self.open, self.attributes = [], [], [], []
        self.feed(page)
        self.close()

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.attributes += [(tag, *pair) for pair in attrs]
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.texts.append(data)


def page_of(**how):
    return render(report_of_bench(make_result(**how)))


PAGES = {
    "one run": {},
    "a ramp, repeated": {"steps": (4, 8, 16), "repeat": 2},
    "nobody told the split": {"told": False},
    "one request": {"count": 1, "failing": 0},
    "two requests": {"count": 2, "failing": 0},
    "all failed": {"failing": 2},
    "no request": {"count": 0},
    "steps that fall": {"steps": (8, 4)},
}


@pytest.mark.parametrize("how", PAGES.values(), ids=PAGES.keys())
def test_every_page_is_whole_and_its_charts_have_tables(how):
    page = page_of(**how)
    read = Read(page)
    assert read.open == []
    assert "nan" not in re.findall(r"\w+", page.partition("</style>")[2])
    assert read.tags.count("svg") == read.tags.count("figure") == read.tags.count("figcaption")
    for figure in re.findall(r"<figure>.*?</figure>", page, re.DOTALL):
        assert 'role="img"' in figure
        assert re.search(r'<svg[^>]* aria-label="[^"]{10,}"', figure)
        assert re.search(r"<details><summary>.*<table>.*<td", figure, re.DOTALL)


def test_the_figures_that_were_promised_are_there():
    page = page_of(steps=(4, 8), repeat=2)
    titles = re.findall(r"<h3>(.*?)</h3>", page)
    for title in (
        "Latency by part",
        "Handler time by stage",
        "Latency distribution",
        "Batch sizes",
        "Padding waste",
        "Rate over time",
        "Latency over time",
        "Batch size over time",
        "Latency by step",
        "Settings and where they are set",
    ):
        assert title in titles, title
    assert "Dashed lines separate the runs" in page


def test_nothing_is_fetched():
    read = Read(page_of(steps=(4, 8)))
    assert "script" not in read.tags
    for tag, name, value in read.attributes:
        assert name not in RESOURCES, (tag, name, value)
        assert name != "href" or value == "data:,", (tag, value)
    page = page_of()
    style = page.partition("<style>")[2].partition("</style>")[0]
    assert "url(" not in style
    assert "@import" not in style
    assert "default-src 'none'" in page


def test_names_and_reasons_are_text():
    read = Read(page_of(model=HOSTILE, reason=HOSTILE, failing=0.5))
    assert read.open == []
    assert not {"script", "img"} & set(read.tags)
    assert not [name for _, name, _ in read.attributes if name.startswith("on")]
    texts = "".join(read.texts)
    assert texts.count(HOSTILE) >= 3, "title, headline and failed requests"


def test_a_hundred_thousand_requests_are_under_two_megabytes_and_the_page_says_what_it_leaves_out():
    page = page_of(count=100_000)
    assert len(page.encode()) < 2_000_000
    found = re.search(r"(\d+) of 100000 requests: the 100 slowest", page)
    assert 400 <= int(found[1]) <= 500


def test_settings_say_how_they_are_known():
    samples = make_samples(400)
    told = settings_of_diagnosis(diagnose(samples, Known(workers=2, batch_size=8, worker_memory=1_500_000_000)))
    rows = {row[0]: row[1:] for row in told.rows}
    assert rows["batchSize"] == [8, BY_SERVER]
    assert rows["maxBatchDelay"][1] == BY_BATCHES
    assert rows["a worker's memory"][0] == "1.50 GB"
    target = {"settings": {"batchSize": 8, "minWorkers": 1}, "origins": {"batchSize": "model-config.yaml"}}
    assert settings_of_target(target).rows == [["batchSize", 8, "model-config.yaml"], ["minWorkers", 1, BY_SERVER]]


def test_a_diagnosis_has_its_advice_and_its_figures():
    found = diagnose(make_samples(400), Known(model="embed", workers=2, batch_size=8), source="logs")
    page = render(report_of_diagnosis(found, {"whole log": 0.25}))
    assert found.finding.headline in " ".join(Read(page).texts)
    for text in ("What would prove it wrong", "25.0% of the computed", "reported by the server (GET /models)"):
        assert text in page
    assert Read(page).tags.count("svg") >= 6


@pytest.mark.parametrize(
    "value, shown", [(None, "-"), (float("nan"), "-"), (2.0, "2"), (0.12345, "0.123"), (7, "7"), ("a.0", "a.0")]
)
def test_cells_are_short(value, shown):
    assert cell(value) == shown


def test_the_file_is_there_whole_or_not_at_all(tmp_path, monkeypatch):
    report = report_of_bench(make_result())
    save(report, tmp_path / "r.html")
    assert (tmp_path / "r.html").read_text(encoding="utf-8").endswith("</html>")
    (tmp_path / "folder").mkdir()
    with pytest.raises(OSError, match="folder"):
        save(report, tmp_path / "folder")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["folder", "r.html"]


def test_an_impossible_path_is_reported_before_the_work(tmp_path):
    check_path(tmp_path / "r.html")
    for bad in (tmp_path, tmp_path / "no" / "r.html"):
        with pytest.raises(UsageError, match="--html"):
            check_path(bad)
