"""BatchHandler itself: loading in order, what it offers to a subclass, and errors in one line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from tsbatch.errors import LoadError, SettingsError
from tsbatch.handler import BatchHandler
from tsbatch.protocol.request import Request
from tsbatch.settings import Section
from tsbatch.worker.context import ModelContext


class Plain(BatchHandler):
    def load_model(self):
        return torch.nn.Identity()


def load(cls=Plain, folder=Path(), config=None, **context):
    handler = cls()
    handler.load(ModelContext(model_dir=folder, config=config or {}, **context))
    return handler


def failure(cls=Plain, **arguments):
    with pytest.raises(LoadError) as caught:
        load(cls, **arguments)
    assert "\n" not in str(caught.value), "one line"
    return str(caught.value)


def test_the_steps_of_loading_in_their_order(tmp_path):
    (tmp_path / "labels.json").write_text("[1]")
    seen = []

    class Steps(Plain):
        def load_model(self):
            seen.append(("model", dict(self.aux), self.device.type, self.model_dir))
            return torch.nn.Dropout()

        def load_tokenizer(self):
            seen.append(("tokenizer", self.model is not None))
            return "tokenizer"

        def prepare(self):
            seen.append(("prepare", self.tokenizer, self.model.training, self.initialized))

        def examples(self):
            seen.append(("warm-up", self.initialized))
            return ()

    load(Steps, tmp_path, {"tsbatch": {"aux": {"labels": "labels.json"}}})
    assert seen == [
        ("model", {"labels": [1]}, "cpu", tmp_path),
        ("tokenizer", True),
        ("prepare", "tokenizer", False, False),
        ("warm-up", True),
    ]


@pytest.mark.parametrize("step", ["load_model", "load_tokenizer", "prepare"])
@pytest.mark.parametrize("error", [ValueError("no such layer"), ImportError("No module named 'x'"), OSError("disk")])
def test_whatever_fails_while_loading_is_one_line(step, error):
    def broken(self):
        raise error

    message = failure(type("Broken", (Plain,), {step: broken}))
    assert message == f"Broken.{step} raised {type(error).__name__}: {error}"


def test_a_load_error_of_the_users_own_is_passed_on():
    class Own(Plain):
        def prepare(self):
            raise LoadError("labels.json: 3 labels for 4 classes")

    assert failure(Own) == "labels.json: 3 labels for 4 classes"


def test_the_default_model_says_what_to_do_in_an_empty_folder(tmp_path):
    assert "override load_model" in failure(BatchHandler, folder=tmp_path)


class Options(Section):
    top: int = 5


def test_the_users_own_section():
    class Declared(Plain):
        settings_class = Options

    assert load(Declared, config={"handler": {"top": 2}}).options == Options(top=2)
    assert load(Declared).options == Options()
    assert "handler.topp does not exist; did you mean 'top'" in failure(Declared, config={"handler": {"topp": 1}})
    assert load(config={"handler": {"any": 1}}).options == {"any": 1}


def test_wrong_settings_stop_the_load():
    with pytest.raises(SettingsError, match=r"did you mean 'threads'"):
        load(config={"tsbatch": {"thread": 1}})


def test_threads_are_set_before_the_model_is_loaded():
    before = torch.get_num_threads()
    seen = []

    class Counting(Plain):
        def load_model(self):
            seen.append(torch.get_num_threads())
            return super().load_model()

    try:
        load(Counting, config={"tsbatch": {"threads": 1}})
        assert seen == [1]
    finally:
        torch.set_num_threads(before)


def test_what_was_registered_is_closed_once_last_first():
    handler, seen = load(), []
    handler.on_close(lambda: seen.append("first"))
    handler.on_close(lambda: seen.append("second"))
    handler.close()
    handler.close()
    assert seen == ["second", "first"]


def test_one_close_that_raises_keeps_no_other_from_closing():
    handler, seen = load(), []
    handler.on_close(lambda: seen.append("closed"))
    handler.on_close(lambda: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        handler.close()
    assert seen == ["closed"]


def test_a_description_is_json():
    handler = load(model_name="m", model_version="3", batch_size=4)
    [reply] = handler.answer([Request.of(None, kind="describe")])
    told = json.loads(reply.body)
    assert told["handler"] == "Plain"
    assert told["model"] == {"name": "m", "version": "3"}
    assert told["batch_size"] == 4
    assert told["limits"]["items"] == 64


@pytest.mark.parametrize(
    "mode, deduplicate, expected",
    [("auto", "auto", (True, False)), ("bucketed", True, (True, True)), ("padded", False, (False, False))],
)
def test_what_the_loop_asks(mode, deduplicate, expected):
    handler = load(config={"tsbatch": {"batching": {"mode": mode, "deduplicate": deduplicate}}})
    assert (handler.buckets, handler.deduplicates) == expected


def answer(handler, value):
    [reply] = handler.answer([Request.of(value)])
    return reply.status, reply.body


def test_parameters_are_read_once_for_all_items_that_have_none_of_their_own():
    read = []

    class Wish(Section):
        top_k: int = 1

        def model_post_init(self, context):
            read.append(self.top_k)

    class Wishing(Plain):
        parameters_class = Wish

    items = [1, 2, {"inputs": 3, "parameters": {"top_k": 3}}, 4]
    decoded = load(Wishing).decode_request(Request.of({"inputs": items, "parameters": {"top_k": 2}}))
    assert [item.parameters.top_k for item in decoded] == [2, 2, 3, 2]
    assert read == [2, 3]


def test_the_defaults_of_all_stages_over_numbers_and_vectors():
    class Vectors(Plain):
        item_ndim = 1

    assert answer(load(), [1.5, 2.0]) == (200, b"[1.5,2.0]")
    assert answer(load(Vectors), [1.5, 2.0]) == (200, b"[1.5,2.0]")
    assert answer(load(Vectors), [[1.5, 2.0], [3.0, 4.0]]) == (200, b"[[1.5,2.0],[3.0,4.0]]")


def test_models_of_several_inputs_and_outputs():
    class Two(torch.nn.Module):
        def forward(self, left, right):
            return left + right, left * right

    class Pairs(Plain):
        def load_model(self):
            return Two()

        def postprocess(self, outputs, items):
            return [[float(total), float(product)] for total, product in outputs]

    class Keyed(Pairs):
        def preprocess(self, items):
            return [{"left": item.value["a"], "right": item.value["b"]} for item in items]

    class Placed(Pairs):
        def preprocess(self, items):
            return [(item.value["a"], item.value["b"]) for item in items]

    for cls in (Keyed, Placed):
        assert answer(load(cls), [{"a": 2.0, "b": 3.0}, {"a": 4.0, "b": 5.0}]) == (200, b"[[5.0,6.0],[9.0,20.0]]")


@pytest.mark.parametrize(
    "names", [{"preprocess": "(self)"}, {"inference": "(self)"}, {"postprocess": "(self, outputs)"}]
)
def test_a_stage_with_the_wrong_number_of_arguments(names):
    [(name, signature)] = names.items()
    scope = {}
    exec(f"def {name}{signature}: return None", scope)
    assert f"write: def {name}(self, " in failure(type("Old", (Plain,), {name: scope[name]}))


@pytest.mark.parametrize("section", [[1], "x", 3])
def test_a_handler_section_that_is_none_is_refused(tmp_path, section):
    with pytest.raises(SettingsError, match="handler: expected keys and values"):
        BatchHandler().load(ModelContext(model_dir=tmp_path, config={"handler": section}))
