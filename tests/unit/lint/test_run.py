"""Which files lint recognizes, how it renders findings, and what --fix writes."""

from __future__ import annotations

import io
import json
import tarfile
import zipfile
from dataclasses import replace
from pathlib import Path

import pytest

from tsbatch.errors import UsageError
from tsbatch.lint import output
from tsbatch.lint.documents import Machine
from tsbatch.lint.findings import Edit, Finding
from tsbatch.lint.fixing import apply, fix
from tsbatch.lint.registry import all_rules
from tsbatch.lint.run import lint

MANIFEST = {"runtime": "python", "model": {"modelName": "m", "handler": "h.py", "configFile": "model-config.yaml"}}
FILES = {
    "MAR-INF/MANIFEST.json": json.dumps(MANIFEST),
    "h.py": "import os\n",
    "model-config.yaml": "maxBatchDelay: 0\nresponseTimeout: 9\nstartupTimeout: 9\n",
}
FINDING = Finding("config-quotes", "a b.properties", 3, "error", "50%, wrong", "it fails", "x=1\ny=2", None)


def rules_of(*paths, **options):
    return {(Path(each.file.replace("!", "/")).name, each.line, each.rule) for each in lint(paths, **options)}


def packed(path: Path) -> Path:
    if path.name.endswith(".mar"):
        with zipfile.ZipFile(path, "w") as archive:
            for name, text in FILES.items():
                archive.writestr(name, text)
    elif path.name.endswith(".tar.gz"):
        with tarfile.open(path, "w:gz") as archive:
            for name, text in FILES.items():
                entry = tarfile.TarInfo(f"m/{name}")
                entry.size = len(text)
                archive.addfile(entry, io.BytesIO(text.encode()))
    else:
        for name, text in FILES.items():
            (path / name).parent.mkdir(parents=True, exist_ok=True)
            (path / name).write_text(text)
    return path


@pytest.mark.parametrize("name", ["m.mar", "m.tar.gz", "m"])
def test_files_inside_an_archive(tmp_path, name):
    found = rules_of(packed(tmp_path / name))
    assert found == {("model-config.yaml", 1, "yaml-delay-zero"), ("h.py", 1, "handler-no-class")}


def test_a_finding_in_an_archive_names_both(tmp_path):
    (finding, _) = lint([packed(tmp_path / "m.mar")])
    assert finding.file == f"{(tmp_path / 'm.mar').as_posix()}!h.py"


def test_files_of_a_model_folder_that_torchserve_does_not_read(tmp_path):
    packed(tmp_path / "m")
    (tmp_path / "m" / "extra").mkdir()
    (tmp_path / "m" / "extra" / "model-config.yaml").write_text("batchsize: 8\n")
    assert len(rules_of(tmp_path)) == 2


@pytest.mark.parametrize(
    "content", [b"", b"no zip", b"PK\x03\x04 cut off", b"\x1f\x8b cut off"], ids=["empty", "text", "zip", "gzip"]
)
@pytest.mark.parametrize("name", ["m.mar", "m.tar.gz"])
def test_a_broken_archive_is_a_finding(tmp_path, content, name):
    (tmp_path / name).write_bytes(content)
    assert rules_of(tmp_path / name) == {(name, 1, "archive-broken")}


class TestRecognizedFiles:
    def test_a_folder_with_files_of_every_kind(self, tmp_path):
        (tmp_path / "config.properties").write_text("batch_size=8\n")
        (tmp_path / "net.py").write_text("import torch\nclass A: pass\nclass B: pass\n")
        (tmp_path / "my_handler.py").write_text("import os\n")
        (tmp_path / "requirements-dev.txt").write_text("torch\n")
        (tmp_path / "notes.txt").write_text("torch\n")
        (tmp_path / "test_my_handler.py").write_text("class A:\n    def handle(self): ...\nclass B: pass\n")
        (tmp_path / "package").mkdir()
        (tmp_path / "package" / "__init__.py").touch()
        (tmp_path / "package" / "handler.py").write_text("class AHandler: pass\nclass BHandler: pass\n")
        (tmp_path / "docker-compose.yaml").write_text("services: {}\n")
        for hidden in (".git", "__pycache__", "node_modules"):
            (tmp_path / hidden).mkdir()
            (tmp_path / hidden / "config.properties").write_text("batch_size=8\n")
        found = {(name, rule) for name, _, rule in rules_of(tmp_path) if not rule.startswith("config-no-")}
        assert found == {
            ("config.properties", "config-model-key"),
            ("my_handler.py", "handler-no-class"),
            ("requirements-dev.txt", "requirements-torch"),
        }

    def test_a_virtual_environment_is_skipped(self, tmp_path):
        (tmp_path / "env").mkdir()
        (tmp_path / "env" / "pyvenv.cfg").touch()
        (tmp_path / "env" / "config.properties").write_text("batch_size=8\n")
        assert rules_of(tmp_path) == set()

    def test_a_module_that_is_named_is_a_handler(self, tmp_path):
        (tmp_path / "net.py").write_text("import torch\n")
        assert rules_of(tmp_path / "net.py") == {("net.py", 1, "handler-no-class")}

    def test_no_such_path(self, tmp_path):
        with pytest.raises(UsageError, match="there is no such file"):
            lint([tmp_path / "none"])

    def test_an_unknown_kind_of_file(self, tmp_path):
        (tmp_path / "a.csv").touch()
        with pytest.raises(UsageError, match=r"expected a \.properties"):
            lint([tmp_path / "a.csv"])

    def test_a_broken_escape(self, tmp_path):
        (tmp_path / "config.properties").write_text("a=\\u12\n")
        with pytest.raises(UsageError, match=r"is not a valid \.properties file"):
            lint([tmp_path])

    def test_a_rule_can_be_ignored(self, tmp_path):
        (tmp_path / "config.properties").write_text("batch_size=8\nenable_model_api=true\n")
        assert rules_of(tmp_path, ignore=["config-model-key"]) == set()
        with pytest.raises(UsageError, match="there is no such rule"):
            lint([tmp_path], ignore=["config-models-key-typo"])

    def test_a_comment_silences_a_rule(self, tmp_path):
        path = tmp_path / "config.properties"
        path.write_text("enable_model_api=true\n# tsbatch: allow config-model-key, config-number\nbatch_size=8\n")
        assert rules_of(path) == set()
        path.write_text("# tsbatch: allow config-model-key\nenable_model_api=true\nbatch_size=8\n")
        assert rules_of(path) == {("config.properties", 3, "config-model-key")}

    def test_a_comment_in_the_handler_silences_a_rule(self, tmp_path):
        (tmp_path / "config.properties").write_text("enable_model_api=true\n\n\n")
        path = tmp_path / "my_handler.py"
        path.write_text("class H:\n    def f(self, metrics):\n        metrics.add_counter('Tokens', 1)\n")
        assert ("my_handler.py", 3, "set-metric-unnamed") in rules_of(tmp_path)
        path.write_text(path.read_text().replace("1)", "1)  # tsbatch: allow set-metric-unnamed"))
        assert rules_of(tmp_path) == set()

    def test_windows_line_ends(self, tmp_path):
        (tmp_path / "config.properties").write_bytes(b"enable_model_api=true\r\n\r\nbatch_size=8\r\n")
        (tmp_path / "model-config.yaml").write_bytes(b"responseTimeout: 1\r\nstartupTimeout: 1\r\nbatchsize: 8\r\n")
        assert {line for _, line, _ in rules_of(tmp_path)} == {3}

    def test_the_number_of_cores_can_be_set(self, tmp_path):
        path = tmp_path / "model-config.yaml"
        path.write_text("minWorkers: 4\nmaxWorkers: 4\ntsbatch: {threads: 4}\nresponseTimeout: 1\nstartupTimeout: 1\n")
        assert rules_of(path, machine=Machine(cores=16)) == set()
        assert rules_of(path, machine=Machine(cores=15)) == {("model-config.yaml", 3, "yaml-threads")}


class TestFix:
    @pytest.mark.parametrize("end", ["\n", "\r\n"])
    def test_everything_else_stays(self, tmp_path, end):
        path = tmp_path / "config.properties"
        lines = ["# caf\u00e9", "a_b=1 # tsbatch: allow", "job_queue_size = 10 # ten", "", "enable_model_api=yes"]
        path.write_bytes(end.join(lines).encode("latin-1"))
        path.chmod(0o640)
        done = fix(lint([path]))
        assert {each.rule for each in done} >= {"config-boolean", "config-inline-comment"}
        expected = [
            "# caf\u00e9",
            "# tsbatch: allow",
            "a_b=1",
            "# ten",
            "job_queue_size=10",
            "",
            "enable_model_api=true",
        ]
        assert path.read_bytes() == end.join(expected).encode("latin-1")
        assert path.stat().st_mode & 0o777 == 0o640
        assert list(tmp_path.iterdir()) == [path]

    def test_fixed_findings_are_gone(self, tmp_path):
        path = tmp_path / "model-config.yaml"
        path.write_text("batchsize: '8'  # at most\nmaxBatchDelay: 0\nminWorkers: 2\n")
        while fix(lint([path])):
            pass
        assert path.read_text() == (
            "batchSize: 8  # at most\nmaxBatchDelay: 1\nminWorkers: 2\nmaxWorkers: 2\n"
            "responseTimeout: 120\nstartupTimeout: 120\n"
        )

    def test_only_the_first_of_two_edits_of_a_line_is_applied(self, tmp_path):
        path = tmp_path / "config.properties"
        path.write_text("a\nb\n")
        two = [replace(FINDING, file=str(path), edit=Edit(1, 1, (word,))) for word in ("one", "two")]
        assert fix(two) == two[:1]
        assert path.read_text() == "one\nb\n"

    def test_an_archive_is_left_alone(self, tmp_path):
        path = packed(tmp_path / "m.mar")
        before = path.read_bytes()
        assert fix(lint([path])) == []
        assert path.read_bytes() == before

    def test_files_in_a_model_folder_are_fixed(self, tmp_path):
        path = packed(tmp_path / "m")
        assert [each.rule for each in fix(lint([path]))] == ["yaml-delay-zero"]
        assert (path / "model-config.yaml").read_text().startswith("maxBatchDelay: 1\n")

    @pytest.mark.parametrize(
        "data, edit, expected",
        [
            (b"a\nb", Edit(2, 2, ("c",)), b"a\nc"),
            (b"a\nb", Edit(3, 2, ("c",)), b"a\nb\nc\n"),
            (b"a\r\nb\r\n", Edit(1, 1, ("c", "d")), b"c\r\nd\r\nb\r\n"),
            (b"a\nb\nc\n", Edit(2, 2, ()), b"a\nc\n"),
            (b"", Edit(1, 0, ("a",)), b"a\n"),
        ],
    )
    def test_lines(self, data, edit, expected):
        assert apply(data, [edit]) == expected


class TestOutput:
    def test_text(self):
        assert list(output.render_text([FINDING])) == [
            "a b.properties:3: error: 50%, wrong [config-quotes]",
            "    then: it fails",
            "    write: x=1",
            "           y=2",
        ]

    def test_github(self):
        (line,) = output.render_github([FINDING])
        assert line == (
            "::error file=a b.properties,line=3,title=config-quotes::50%25, wrong%0Ait fails%0Awrite: x=1%0Ay=2"
        )

    def test_sarif(self):
        run = output.render_sarif([FINDING])["runs"][0]
        ids = [rule["id"] for rule in run["tool"]["driver"]["rules"]]
        (result,) = run["results"]
        assert ids == list(all_rules())
        assert result["ruleId"] in ids
        assert result["level"] == "error"
        place = result["locations"][0]["physicalLocation"]
        assert place == {"artifactLocation": {"uri": "a%20b.properties"}, "region": {"startLine": 3}}

    def test_summary(self):
        assert output.render_summary([FINDING, FINDING]) == "2 errors"
        assert output.render_summary([]) == "nothing found"
