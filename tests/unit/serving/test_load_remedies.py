"""Each remedy against the exception that a real library raises where the test can make it do so."""

from __future__ import annotations

import json
import pickle
import re
from collections import OrderedDict

import pytest
import torch
import yaml

from tsbatch.serving.load_remedies import CAUSES, remedy


class NotWeights:
    pass


def raised(act):
    with pytest.raises(Exception) as caught:  # noqa: PT011 - which one it is, is what the test is about
        act()
    return f"{type(caught.value).__name__}: {caught.value}"


def wrong_classes(_):
    torch.nn.Linear(4, 3).load_state_dict(torch.nn.Linear(4, 5).state_dict())


def wrapped(_):
    torch.nn.Linear(2, 2).load_state_dict({f"module.{name}": value for name, value in one_layer().items()})


def another_model(_):
    torch.nn.Linear(2, 2).load_state_dict(OrderedDict(other=torch.zeros(1)))


def one_layer():
    return torch.nn.Linear(2, 2).state_dict()


def whole_module(folder):
    torch.save(NotWeights(), folder / "m.pt")
    torch.load(folder / "m.pt", weights_only=True)


def cut_off(folder):
    torch.save(one_layer(), folder / "m.pt")
    (folder / "m.pt").write_bytes((folder / "m.pt").read_bytes()[:300])
    torch.load(folder / "m.pt", weights_only=True)


def git_lfs(folder):
    from safetensors.torch import load_file

    (folder / "m.safetensors").write_text("version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 9\n")
    load_file(folder / "m.safetensors")


def no_tokenizer(folder):
    from transformers import PreTrainedTokenizerFast

    PreTrainedTokenizerFast.from_pretrained(folder)


def hub(_):
    from transformers import AutoConfig

    AutoConfig.from_pretrained("nobody/nothing-of-that-name")


def unknown_architecture(folder):
    from transformers import AutoConfig

    (folder / "config.json").write_text('{"model_type": "from-the-future"}')
    AutoConfig.from_pretrained(folder)


def new_tokenizer(folder):
    from tokenizers import Tokenizer

    Tokenizer.from_str('{"version": "1.0", "model": {"type": "FromTheFuture", "vocab": {}}}')


def own_code(folder):
    from transformers import AutoConfig

    config = {"model_type": "x", "auto_map": {"AutoConfig": "configuration_x.XConfig"}}
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "configuration_x.py").write_text("")
    AutoConfig.from_pretrained(folder, trust_remote_code=False)


def relative(folder):
    (folder / "there").mkdir()
    open("labels.json")  # noqa: PTH123, SIM115


def takes_no_arguments(_):
    def handle(data):
        return data

    handle(None, None)


def dtypes(_):
    torch.nn.Linear(2, 2)(torch.zeros(1, 2, dtype=torch.float64))


def undecodable(folder):
    (folder / "labels.txt").write_bytes("Grüße".encode("latin-1"))
    (folder / "labels.txt").read_text(encoding="utf-8")


REAL = {
    "missing package": lambda _: __import__("no_such_module"),
    "hidden module": lambda _: __import__("bisect.no_such"),
    "other version of a package": lambda _: exec("from json import nothing_of_that_name"),
    "another number of classes": wrong_classes,
    "a prefix of DataParallel or Lightning": wrapped,
    "another model": another_model,
    "more than weights": whole_module,
    "damaged weights": cut_off,
    "damaged safetensors": git_lfs,
    "missing tokenizer files": no_tokenizer,
    "gated or unreachable hub": hub,
    "tokenizers or transformers too old": unknown_architecture,
    "trust_remote_code": own_code,
    "missing file": relative,
    "a name handle in the module": takes_no_arguments,
    "a function called with nothing": lambda _: list(None),
    "not Python": lambda _: compile("def f(:\n", "handler.py", "exec"),
    "dtype": dtypes,
    "broken JSON": lambda _: json.loads(""),
    "broken YAML": lambda _: yaml.safe_load("a: b: c"),
    "encoding": undecodable,
}


def cause_of(text):
    return next((cause for cause in CAUSES if re.search(cause.pattern, text, re.IGNORECASE)), None)


@pytest.mark.parametrize("name", REAL)
def test_what_a_library_really_raises(name, tmp_path, monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    act = REAL[name]
    text = raised(lambda: act(tmp_path))
    if name == "broken YAML":
        text = f"yaml.scanner.{text}"  # a traceback prints the whole name
    cause = cause_of(text)
    assert cause is not None, text
    assert cause.name == name, text
    assert remedy(text)


def test_a_tokenizer_file_of_a_newer_release(tmp_path):
    cause = cause_of(raised(lambda: new_tokenizer(tmp_path)))
    assert cause is not None
    assert cause.name == "tokenizers or transformers too old"


@pytest.mark.parametrize(
    "text, name",
    [
        ("ModuleNotFoundError: No module named 'ts.torch_handler.m'", "no handler file"),
        (
            "ImportError: libGL.so.1: cannot open shared object file: No such file or directory",
            "missing system library",
        ),
        ("RuntimeError: operator torchvision::nms does not exist", "torch and its companions"),
        ("ValueError: numpy.dtype size changed, may indicate binary incompatibility", "numpy's binary interface"),
        ("RuntimeError: Attempting to deserialize object on a CUDA device but torch.cuda.is_av", "no GPU here"),
        ("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB", "GPU memory"),
        ("RuntimeError: [enforce fail] DefaultCPUAllocator: can't allocate memory", "memory"),
        ("the process ended while loading (exit code 137, phase: weights)", "memory"),
        ("OSError: [Errno 28] No space left on device", "disk full"),
        ("PermissionError: [Errno 13] Permission denied: '/var/cache/x'", "permission"),
        ("the tokenizer cannot be loaded: the archive has none of vocab.txt", "missing tokenizer files"),
        ("RuntimeError: Missing the model.py file", "no file in the archive"),
        ("ValueError: Expected only one class in custom service code or a function entry point []", "no class, or two"),
        ("AttributeError: 'Handler' object has no attribute 'initialize'", "no handle or initialize"),
        ("ValueError: labels.json has 3 labels, the model has 5 outputs", "number of labels"),
        ("ValueError: 5 classes but 3 labels", "number of labels"),
        ("the process ended while loading (exit code 139, phase: import)", "crash in native code"),
        ("the worker ended without output; out of memory, or sys.exit", "an end without output"),
    ],
)
def test_what_is_seldom_raised_here(text, name):
    cause = cause_of(text)
    assert cause is not None
    assert cause.name == name


def test_there_are_twenty_and_more_and_each_is_shown():
    shown = {*REAL, *(mark[1] for mark in test_what_is_seldom_raised_here.pytestmark[0].args[1])}
    assert len(CAUSES) >= 20
    assert {cause.name for cause in CAUSES} == shown


def test_an_unknown_cause_has_no_remedy():
    assert remedy("ValueError: the weights are wrong") is None


@pytest.mark.parametrize(
    "text, words",
    [
        ("No module named 'cv2'", ["pip install opencv-python-headless", "--extra cv2.py"]),
        ("No module named 'sklearn.svm'", ["pip install scikit-learn"]),
        ("No such file or directory: 'labels.json'", ["--extra labels.json"]),
        ("No such file or directory: '/home/me/labels.json'", ["a path on another machine", "model_dir"]),
        ("No such file or directory: 'C:\\models\\labels.json'", ["a path on another machine"]),
    ],
)
def test_a_remedy_names_what_was_found(text, words):
    told = remedy(text)
    assert told is not None
    assert all(word in told for word in words)


def test_both_shapes_of_a_wrong_number_of_classes():
    told = remedy(raised(lambda: wrong_classes(None)))
    assert told is not None
    assert "shape [5, 4]" in told
    assert "with [3, 4]" in told


def test_pickles_are_no_way_around():
    assert cause_of(raised(lambda: pickle.loads(b""))).name == "damaged weights"
