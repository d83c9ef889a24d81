"""Every engine against transformers itself, one text at a time; archives with an exported engine."""

import json
import sys
import zipfile

import numpy as np
import pytest
import torch
import transformers
import yaml

from tests.classifiers import best_mode
from tests.tiny import save_encoder
from tsbatch.cli.program import main
from tsbatch.emulation.runner import HandlerRunner
from tsbatch.errors import LoadError
from tsbatch.models.engines import engine_names, find_engine
from tsbatch.protocol.request import Request
from tsbatch.tasks.text_embedding import TextEmbeddingHandler
from tsbatch.worker.context import ModelContext

TEXTS = ["a cat", "the dog ran away from the cat and sat on the mat all day", "a dog sat", "it", "on the mat today"]
OTHERS = """
import time
from tsbatch.models.engines import Engine

class Wrong(Engine):
    name = "wrong"
    def start(self, source):
        forward = source.model.forward
        def astray(**tensors):  # quick, and its answers are other ones than the model's
            output = forward(**tensors)
            output.last_hidden_state = output.last_hidden_state + 0.05 * output.last_hidden_state.roll(1, -1)
            return output
        return astray

class Leaking(Engine):
    name = "leaking"
    def start(self, source):
        forward = source.model.forward
        def leaking(**tensors):  # the neighbours in a batch take part in each answer
            output = forward(**tensors)
            output.last_hidden_state = output.last_hidden_state + 0.05 * output.last_hidden_state.roll(1, 0)
            return output
        return leaking

class Slow(Engine):
    name = "slow"
    start_seconds = 900
    def start(self, source):
        forward = source.model.forward
        def later(**tensors):
            time.sleep(0.05)
            return forward(**tensors)
        return later

class Absent(Engine):
    name = "absent"
    needs = ("a_module_that_nobody_has",)
    remedy = "pip install absent"
"""


@pytest.fixture(autouse=True)
def compiled_here(tmp_path_factory, monkeypatch):
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path_factory.getbasetemp() / "compiled"))


@pytest.fixture
def folder(tmp_path):
    return save_encoder(tmp_path / "model")


@pytest.fixture
def others(tmp_path, monkeypatch):
    """A package that brings engines, as pip would install it."""
    about = tmp_path / "site" / "others-1.0.dist-info"
    about.mkdir(parents=True)
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: others\nVersion: 1.0\n", encoding="utf-8")
    names = "\n".join(f"{name.lower()} = others_engines:{name}" for name in ("Wrong", "Leaking", "Slow", "Absent"))
    (about / "entry_points.txt").write_text(f"[tsbatch.engines]\n{names}\n", encoding="utf-8")
    (tmp_path / "site" / "others_engines.py").write_text(OTHERS, encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path / "site")
    yield
    sys.modules.pop("others_engines", None)


@pytest.fixture
def pack(tmp_path, folder):
    """`tsbatch package` with these words; the exit code and the archive's path."""

    def run(*words):
        where = ["--model", str(folder), "--name", "m", "--threads", "1", "-o", str(tmp_path / "store")]
        return main(["package", "--task", "text-embedding", *where, *words]), tmp_path / "store" / "m.mar"

    return run


def load(folder, **settings):
    handler = TextEmbeddingHandler()
    handler.load(
        ModelContext(model_dir=folder, batch_size=8, config={"tsbatch": {"warmup": False, "threads": 1, **settings}})
    )
    return handler


def exported(folder, name, dtype="float32"):
    """The model's folder with what the engine needs beside the weights."""
    load(folder, batching={"mode": "bucketed"}).export_engine(find_engine(name), folder, dtype)
    return folder


def embed(handler, texts):
    replies = handler.answer([Request.of({"inputs": text}) for text in texts])
    assert [reply.status for reply in replies] == [200] * len(texts), [reply.body for reply in replies]
    return np.array([json.loads(reply.body)["embedding"] for reply in replies], dtype=np.float64)


def truth(folder):
    """transformers alone, one text at a time: the mean of the token states, normalised."""
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    model = transformers.AutoModel.from_pretrained(folder).eval()
    rows = []
    for text in TEXTS:
        with torch.no_grad():
            states = model(**tokenizer(text, return_tensors="pt", return_token_type_ids=False)).last_hidden_state[0]
        rows.append(torch.nn.functional.normalize(states.mean(0), dim=0).double().numpy())
    return np.array(rows)


def worst(one, other):
    return float((one * other).sum(1).min())


def answers_like_transformers(folder, name):
    """Load the model with this engine and hold it against transformers, text by text."""
    handler = load(exported(folder, name), engine=name, dtype="float32")
    expected = truth(folder)
    assert worst(embed(handler, TEXTS), expected) > 0.999999
    assert worst(embed(handler, TEXTS[:1]), expected[:1]) > 0.999999
    assert handler.describe_handle()["engine"] == {"name": name, "dtype": "float32"}
    assert handler.choice.mode == (best_mode() if name == "eager" else "bucketed")
    assert name == "eager" or f"the engine {name} takes padded batches" in handler.choice.reason
    if name != "eager":  # it is the engine that answered, not the model behind it
        handler.model.forward = lambda **tensors: pytest.fail("called")
        replies = handler.answer([Request.of({"inputs": "a cat"})])
        assert b"called" in replies[0].body


@pytest.mark.parametrize("name", [name for name in engine_names() if name != "compile"])  # that one takes a minute
def test_every_engine_answers_like_transformers_one_by_one(folder, name):
    answers_like_transformers(folder, name)


@pytest.mark.parametrize("kind, name", [("Roberta", "onnxruntime"), ("DebertaV2", "openvino")])
def test_other_architectures_export_too(tmp_path, kind, name):
    folder = save_encoder(tmp_path / "model", kind)
    handler = load(exported(folder, name), engine=name)
    assert worst(embed(handler, TEXTS), truth(folder)) > 0.999999


@pytest.mark.parametrize("dtype, least", [("bfloat16", 0.999), ("float16", 0.9999), ("int8", 0.99)])
def test_other_numbers_stay_near(folder, dtype, least):
    handler = load(folder, dtype=dtype)
    assert handler.choice.mode == best_mode()
    assert least < worst(embed(handler, TEXTS), truth(folder)) < 0.99999999


def test_the_model_itself_comes_back(folder):
    handler = load(exported(folder, "onnxruntime"), engine="onnxruntime")
    embed(handler, TEXTS)
    del handler.model.forward
    assert worst(embed(handler, TEXTS), truth(folder)) > 0.999999


def test_packed_cannot_be_asked_of_an_engine_that_pads(folder):
    with pytest.raises(LoadError, match="packed cannot be used: the engine export takes padded"):
        load(folder, engine="export", batching={"mode": "packed"})


@pytest.mark.parametrize("name, dtype", [("onnxruntime", "float32"), ("onnxruntime", "int8"), ("openvino", "float32")])
def test_an_archive_with_an_exported_engine_answers_like_eager(pack, folder, capsys, name, dtype):
    assert pack("--engine", name, "--dtype", dtype, "--engine-bound", "0.95", "--json")[0] == 0
    report = json.loads(capsys.readouterr().out)
    assert (report["config"]["tsbatch"]["engine"], report["config"]["tsbatch"]["dtype"]) == (name, dtype)
    (trial,) = report["engines"]
    assert trial["problem"] is None
    assert trial["batched"] > 0
    assert 0.95 < trial["agreement"] <= 1.0000001
    with HandlerRunner.from_mar(report["archive"]) as runner:
        assert runner.describe().json()["engine"] == {"name": name, "dtype": dtype}
        answers = np.array([answer.json()["embedding"] for answer in runner.predict(TEXTS)])
    assert worst(answers, truth(folder)) > (0.999999 if dtype == "float32" else 0.95)


def test_auto_takes_the_fastest_whose_answers_agree(pack, others, capsys, monkeypatch):
    monkeypatch.setattr("tsbatch.packaging.engine_selection.engine_names", lambda: ["slow", "eager", "wrong", "absent"])
    code, path = pack("--engine", "auto", "--dtype", "float32", "--json")
    assert code == 0
    report = json.loads(capsys.readouterr().out)
    trials = {trial["engine"]: trial for trial in report["engines"]}
    assert report["config"]["tsbatch"]["engine"] == "eager"
    assert trials["slow"]["problem"] is None
    assert trials["slow"]["batched"] < trials["eager"]["batched"]
    assert "its answers deviate" in trials["wrong"]["problem"]
    assert trials["wrong"]["agreement"] < 0.9999
    assert trials["absent"]["problem"] == "the engine absent needs a_module_that_nobody_has: pip install absent"
    with zipfile.ZipFile(path) as archive:
        kept = json.loads(archive.read("engines.json"))
        config = yaml.safe_load(archive.read("model-config.yaml"))
    assert kept["chosen"] == {"engine": "eager", "dtype": "float32"}
    assert kept["trials"] == report["engines"]
    assert config["tsbatch"]["engine"] == "eager"


def test_an_engine_whose_answers_depend_on_the_neighbours_runs_one_by_one(others, folder):
    handler = load(folder, engine="leaking")
    assert handler.choice.mode == "single"
    assert "equal cannot be used: its answers differ from those one by one" in handler.choice.reason


def test_an_engine_that_strays_is_refused_also_when_it_is_asked_for(pack, others, capsys):
    code, path = pack("--engine", "wrong")
    assert code == 2
    assert not path.exists()
    assert "--engine wrong (auto): its answers deviate" in capsys.readouterr().err.splitlines()[-1]


def test_the_engine_of_the_yaml_is_tried_and_gets_the_time_it_needs_to_start(pack, others, folder, capsys):
    (folder / "model-config.yaml").write_text("tsbatch: {engine: slow}\n", encoding="utf-8")
    code, path = pack()
    assert code == 0
    out, err = capsys.readouterr()
    assert "engine slow, dtype auto" in out
    assert "startupTimeout is 900 s" in err
    with zipfile.ZipFile(path) as archive:
        config = yaml.safe_load(archive.read("model-config.yaml"))
    assert config["startupTimeout"] == 900
    assert config["tsbatch"]["engine"] == "slow"


def test_the_table_shows_what_was_tried(pack, capsys):
    assert pack("--engine", "eager", "--dtype", "float32")[0] == 0
    out = capsys.readouterr().out
    assert "agreement" in out
    assert "engine eager, dtype float32" in out


@pytest.mark.parametrize(
    "words, said",
    [
        (["--engine", "onxruntime"], "'onxruntime' does not exist; did you mean 'onnxruntime'?"),
        (
            ["--engine", "openvino", "--dtype", "int8"],
            "the engine openvino has no int8; expected auto or one of: float32",
        ),
        (["--engine", "absent"], "needs a_module_that_nobody_has: pip install absent"),
    ],
)
def test_what_cannot_be_is_one_line(pack, others, capsys, words, said):
    assert pack(*words)[0] == 2
    assert said in capsys.readouterr().err.splitlines()[-1]


def test_a_handler_that_knows_no_engines_is_told(tmp_path, capsys):
    handler = tmp_path / "own.py"
    handler.write_text("from tsbatch import BatchHandler\nclass Own(BatchHandler):\n    pass\n", encoding="utf-8")
    program = torch.export.export(torch.nn.Linear(2, 2), (torch.ones(1, 2),))
    torch.export.save(program, tmp_path / "linear.pt2")
    words = ["--handler", str(handler), "--model", str(tmp_path / "linear.pt2"), "--name", "own", "-o", str(tmp_path)]
    assert main(["package", *words, "--engine", "auto"]) == 2
    assert "this handler runs its model as it is" in capsys.readouterr().err.splitlines()[-1]
