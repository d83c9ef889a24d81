"""The HTML report in a real headless browser, at a phone's and a desktop's width.

The screenshots are kept in ``reports/report`` for people to look at.
"""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from tests.acceptance.browser import browser, find_browser
from tests.acceptance.regimes import CASES, registered
from tests.unit.report.results import make_result, make_samples
from tsbatch.cli.program import main
from tsbatch.diagnosis.diagnosis import diagnose
from tsbatch.diagnosis.model_facts import Known
from tsbatch.report.bench_report import report_of_bench
from tsbatch.report.diagnosis_report import report_of_diagnosis
from tsbatch.report.html_page import save
from tsbatch.serving.server import Server

SHOTS = Path(__file__).parents[3] / "reports" / "report"
WINDOWS = {"phone": (390, 844), "small phone": (320, 568), "desktop": (1280, 900)}
PAPER_SIZE = (700, 990)
"""CSS pixels of an A4 sheet without its margins."""

HOSTILE = "a" * 120 + "</title><script>console.error(1)</script><img src='https://example.org/x.png'>"

CHARTS = "[...document.querySelectorAll('svg')].map(one => one.getBoundingClientRect()).map(b => [b.width, b.height])"
TEXTS_OUTSIDE = """[...document.querySelectorAll('svg text')].filter(one => {
    const text = one.getBoundingClientRect(), chart = one.closest('svg').getBoundingClientRect();
    return text.left < chart.left - 1 || text.right > chart.right + 1 || text.bottom > chart.bottom + 1;
}).map(one => one.textContent)"""
SMALLEST_TEXT = "Math.min(...[...document.querySelectorAll('svg text')].map(one => one.getBoundingClientRect().height))"
SCROLLS = "document.scrollingElement.scrollWidth"
"""To compare with the window's width, not with innerWidth: a phone makes that larger when a page is too wide."""

PAPER = "getComputedStyle(document.body).backgroundColor"


def simulated(folder):
    """Pages of results that no server was needed for, by name."""
    logs = diagnose(make_samples(2000), Known(model="embed", workers=2), source="logs", remarks=["one remark"])
    reports = {
        "ramp": report_of_bench(make_result(steps=(4, 8, 16), repeat=3, count=2000)),
        "untold": report_of_bench(make_result(told=False)),
        "one request": report_of_bench(make_result(count=1, failing=0)),
        "all failed": report_of_bench(make_result(failing=2)),
        "hostile": report_of_bench(make_result(model=HOSTILE, reason=HOSTILE, failing=0.3)),
        "large": report_of_bench(make_result(count=100_000)),
        "diagnosis": report_of_diagnosis(logs, {"whole log": 0.2}),
    }
    for name, report in reports.items():
        save(report, folder / f"{name}.html")
    return list(reports)


def measured(folder):
    """Pages of a load test and of the log of a real TorchServe, by name."""
    case = next(case for case in CASES if case.settings.workers == 1)
    data = folder / "data.jsonl"
    data.write_text(json.dumps({"inputs": "a"}) + "\n")
    with Server.start(name="acceptance-report") as server:
        archive = case.archive(folder)
        with registered(server, archive, replace(case.settings, batch_size=4)) as model:
            load = ["--data", str(data), "--name", "acceptance-report", "--duration", "8", "--warm-up", "2"]
            assert main(["bench", model, *load, "--repeat", "2", "--html", str(folder / "bench.html")]) == 0
            source = [str(server.instance.log_dir), "--model", model]
            assert main(["diagnose", *source, "--html", str(folder / "logs.html")]) == 0
    return ["bench", "logs"]


@pytest.fixture(scope="module")
def page():
    path = find_browser()
    if path is None:
        pytest.skip("no Chromium on this machine (Debian: apt-get install chromium)")
    SHOTS.mkdir(parents=True, exist_ok=True)
    with browser(path) as found:
        yield found


def look(page, folder, name):
    """What is wrong with a page, in both widths, light, dark and printed."""
    url = (folder / f"{name}.html").as_uri()
    wrong = []
    for window, (width, height) in WINDOWS.items():
        page.size(width, height, mobile=window != "desktop")
        for scheme in ("light", "dark"):
            page.media(prefers_color_scheme=scheme)
            page.open(url)
            wrong += problems(page, url, width, f"{name}, {window}, {scheme}")
            if window != "small phone":
                page.screenshot(SHOTS / f"{name}-{window}-{scheme}.png")
        page.run("document.querySelectorAll('details').forEach(one => one.open = true)")
        wrong += problems(page, url, width, f"{name}, {window}, unfolded")
    width, height = PAPER_SIZE
    page.size(width, height)
    page.media("print", prefers_color_scheme="dark")
    page.open(url)
    wrong += problems(page, url, width, f"{name}, print")
    page.media()
    page.pdf(SHOTS / f"{name}.pdf")
    return wrong


def problems(page, url, width, where):
    """What is wrong with the page as it is now, in a window so wide."""
    charts, needed = page.run(CHARTS), page.run(SCROLLS)
    found = {
        "console": page.complaints(),
        "requests": [asked for asked in page.requests() if asked not in (url, "data:,")],
        "scrolls sideways": [needed] if needed > width else [],
        "not drawn": [chart for chart in charts if min(chart) < 20],
        "cut off": page.run(TEXTS_OUTSIDE) if charts else [],
        "too small to read": [] if not charts or page.run(SMALLEST_TEXT) >= 9 else ["texts"],
    }
    return [f"{where}: {kind}: {what}" for kind, what in found.items() if what]


def test_line_6_the_report_in_a_browser(page, tmp_path, record_property):
    names = simulated(tmp_path)
    wrong = [line for name in names for line in look(page, tmp_path, name)]
    assert not wrong, "\n".join(wrong)
    record_property("line6_pages", f"{len(names)} pages in {len(WINDOWS)} widths, light and dark: nothing wrong")
    sizes = {name: (tmp_path / f"{name}.html").stat().st_size for name in names}
    assert max(sizes.values()) < 2_000_000
    record_property("line6_bytes_of_100000_requests", sizes["large"])
    page.open((tmp_path / "ramp.html").as_uri())
    record_property("line6_charts_of_a_ramp", len(page.run(CHARTS)))


def test_line_6_of_a_real_server(page, tmp_path, record_property):
    names = measured(tmp_path)
    wrong = [line for name in names for line in look(page, tmp_path, name)]
    assert not wrong, "\n".join(wrong)
    text = (tmp_path / "bench.html").read_text(encoding="utf-8")
    for told in ("Latency by part", "Handler time by stage", "model-config.yaml", "API (registered"):
        assert told in text, told
    record_property("line6_bytes_of_a_load_test", len(text.encode()))


def test_line_6_light_and_dark_differ(page, tmp_path):
    save(report_of_bench(make_result()), tmp_path / "page.html")
    papers = {}
    for scheme in ("light", "dark"):
        page.media(prefers_color_scheme=scheme)
        page.open((tmp_path / "page.html").as_uri())
        papers[scheme] = page.run(PAPER)
    page.media("print", prefers_color_scheme="dark")
    assert papers["light"] != papers["dark"]
    assert page.run(PAPER) == papers["light"], "paper is white"


def test_line_6_the_checks_see_what_is_wrong(page, tmp_path):
    """Each check of this file finds a page that is wrong in that way."""
    page.size(390, 844, mobile=True)
    path = tmp_path / "bad.html"
    path.write_text(
        "<!doctype html><meta name=viewport content='width=device-width'><script>console.error(1)</script>"
        "<img src='http://127.0.0.1:9/x.png'><div style='width:900px'>wide</div>"
        "<svg width=360 height=0></svg><svg width=360 height=40><text x=350 y=20 font-size=5>cut off</text></svg>"
    )
    page.open(path.as_uri())
    found = "\n".join(problems(page, path.as_uri(), 390, "bad"))
    for kind in ("console", "requests", "scrolls sideways", "not drawn", "cut off", "too small to read"):
        assert kind in found, kind
