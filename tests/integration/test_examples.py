"""The handlers of the docs: packed as the docs say, run through TorchServe's own Service, and without TorchServe."""

import json
import re
import shutil
import subprocess
import sys
from importlib.metadata import entry_points
from pathlib import Path

import pytest
import torch

from tsbatch import HandlerRunner
from tsbatch.packaging.builder import package

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "docs" / "examples"
FORMS = {
    "net.safetensors": "digits_handler.py",
    "net.pt": "digits_handler.py",
    "program.pt": "program_handler.py",
    "program.pt2": "program_handler.py",
}


def model_folder(folder: Path, form: str) -> Path:
    """The example's folder with its weights in one form, made by the script that the docs name."""
    folder.mkdir(parents=True)
    shutil.copy(EXAMPLES / "digits" / "net.py", folder)
    script = EXAMPLES / "digits" / "make_model.py"
    subprocess.run(
        [sys.executable, str(script), form],
        cwd=folder,
        check=True,
        capture_output=True,
        env={"PYTHONPATH": str(folder)},
    )
    return folder


def handler_file(folder: Path, form: str) -> Path:
    source = (EXAMPLES / "digits" / FORMS[form]).read_text()
    path = folder / "digits_handler.py"
    path.write_text(source.replace("net.safetensors", form) if form == "net.pt" else source)
    return path


def expected(images: list[list[float]]) -> list[int]:
    """One by one, by a module built with the same seed."""
    namespace: dict[str, object] = {}
    exec((EXAMPLES / "digits" / "net.py").read_text(), namespace)
    torch.manual_seed(0)
    net = namespace["Net"]().eval()  # type: ignore[operator]
    return [int(net(torch.tensor([image])).argmax()) for image in images]


@pytest.fixture(scope="module")
def images() -> list[list[float]]:
    return torch.randn(24, 64, generator=torch.Generator().manual_seed(1)).tolist()


@pytest.mark.parametrize("form", FORMS)
def test_each_form_of_model_gets_batching_isolation_and_timings(form, images, tmp_path):
    model = model_folder(tmp_path / "model", form)
    mar = package(name="digits", model_dir=model, handler=handler_file(tmp_path, form), output_dir=tmp_path)
    with HandlerRunner.from_mar(mar, batch_size=8) as runner:
        bodies = [{"instances": images[:3]}, [images[3]], {"inputs": [[1.0, 2.0]]}, {"inputs": images[4:24]}]
        first, second, broken, last = runner.predict(bodies)
        found = [*first.json()["predictions"], *second.json(), *last.json()]
        assert found == expected(images)
        assert broken.status == 500
        assert broken.json()["error"]["message"].startswith("inference raised ")
        assert 'batch;desc="4/8"' in first.headers["Server-Timing"]
        assert {metric.name for metric in runner.metrics} >= {"HandlerTime", "PredictionTime"}


def test_the_examples_are_at_most_twelve_lines():
    for name in set(FORMS.values()):
        lines = [line for line in (EXAMPLES / "digits" / name).read_text().splitlines() if line.strip()]
        assert len(lines) <= 12, name


def test_the_pages_show_the_files_as_they_are():
    shown = 0
    for page in (ROOT / "docs").glob("*.md"):
        for file, block in re.findall(r"<!-- file: (\S+) -->\n```python\n(.*?)```", page.read_text(), re.DOTALL):
            assert block == (page.parent / file).read_text(), f"{page.name} does not show {file} as it is"
            shown += 1
    assert shown >= 3


@pytest.mark.filterwarnings("ignore:.torch.jit.load. is deprecated:DeprecationWarning")  # BaseHandler calls it
def test_a_basehandler_and_the_edit_that_moves_it_over(images, tmp_path):
    folder = model_folder(tmp_path / "model", "program.pt")
    archives = {}
    for name in ("before", "after"):
        file = EXAMPLES / "from_basehandler" / f"{name}_handler.py"
        mar = package(name=name, model_dir=folder / "program.pt", handler=file, output_dir=tmp_path)
        archives[name] = mar
    good = [[image] for image in images[:4]]
    with HandlerRunner.from_mar(archives["after"]) as runner:
        answers = runner.predict([*good, ["not an image"]])
    assert [answer.status for answer in answers] == [200, 200, 200, 200, 500]
    assert [answer.json() for answer in answers[:4]] == [[digit] for digit in expected(images[:4])]
    with HandlerRunner.from_mar(archives["before"]) as runner:
        # The same bodies, each of them an image with the dimension that BaseHandler's torch.tensor(rows) wants.
        answers = runner.predict([image[0] for image in good])
        assert [answer.json() for answer in answers] == expected(images[:4])
        # And this is why people move: one bad request fails them all.
        answers = runner.predict([*(image[0] for image in good), "not an image"])
        assert {answer.status for answer in answers} == {503}


def test_the_tests_on_the_page_pass(tmp_path):
    folder = model_folder(tmp_path / "model", "net.safetensors")
    for file in ("digits_handler.py", "test_digits.py"):
        shutil.copy(EXAMPLES / "digits" / file, folder)
    installed = any(entry.name == "tsbatch" for entry in entry_points(group="pytest11"))
    plugin = [] if installed else ["-p", "tsbatch.pytest_plugin"]
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", *plugin, str(folder)]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    assert "2 passed" in done.stdout, done.stdout + done.stderr


BLOCKED = """
import importlib.abc, json, sys
from pathlib import Path

class Blocker(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] == "ts":
            raise ImportError("ts is blocked")

sys.meta_path.insert(0, Blocker())
sys.path.insert(0, sys.argv[1])
from digits_handler import Digits
from tsbatch import ModelContext, Request

handler = Digits()
handler.load(ModelContext(model_dir=Path(sys.argv[1]), batch_size=8))
images = json.load(sys.stdin)
replies = handler.answer([Request.of([image]) for image in images] + [Request.of(["bad"])])
assert not any(name.split(".")[0] == "ts" for name in sys.modules)
print(json.dumps([[reply.status, json.loads(reply.body), reply.headers["Server-Timing"]] for reply in replies]))
"""


def test_the_same_file_runs_with_ts_blocked(images, tmp_path):
    folder = model_folder(tmp_path / "model", "net.safetensors")
    shutil.copy(EXAMPLES / "digits" / "digits_handler.py", folder)
    done = subprocess.run(
        [sys.executable, "-c", BLOCKED, str(folder)],
        input=json.dumps(images),
        capture_output=True,
        text=True,
        check=True,
    )
    *good, bad = json.loads(done.stdout)
    assert [body for _, body, _ in good] == [[digit] for digit in expected(images)]
    assert bad[0] == 500
    assert 'batch;desc="25/25"' in good[0][2]
