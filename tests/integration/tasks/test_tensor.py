"""Numbers in, numbers out: each kind of model against itself, called with one item at a time."""

from __future__ import annotations

import base64
import io
import json
import warnings

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from tests.varied import batches
from tsbatch.errors import LoadError
from tsbatch.protocol.request import Headers, Request
from tsbatch.tasks.tensor import TensorHandler
from tsbatch.tasks.tensors.inputs import declared_inputs
from tsbatch.worker.context import ModelContext

ROWS = np.random.default_rng(0).normal(size=(40, 4)).astype(np.float32)
X = {"name": "x", "shape": [4], "dtype": "float32"}
NPY = {"accept": "application/x-npy"}

TWO_FILE = '''
import torch


class Two(torch.nn.Module):
    """A table's row and a picture of any size: their score, and what is left of the row."""

    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(4, 3)

    def forward(self, row, picture):
        hidden = torch.tanh(self.layer(row))
        return hidden.sum(1) * picture.float().mean((1, 2)), hidden
'''


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Tanh(), torch.nn.Linear(8, 3))

    def forward(self, x):
        return self.layers(x)


@pytest.fixture(scope="module")
def net():
    torch.manual_seed(0)
    return Net().eval()


def save_kind(net, folder, kind):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch 2.13 deprecates TorchScript, and its exporters warn of each other
        if kind == "torchscript":
            torch.jit.trace(net, torch.zeros(2, 4)).save(folder / "net.pt")
        elif kind == "export":
            rows = torch.export.Dim("rows", min=1)
            exported = torch.export.export(net, (torch.zeros(2, 4),), dynamic_shapes=({0: rows},))
            torch.export.save(exported, folder / "net.pt2")
        else:
            rows = torch.export.Dim("rows", min=1)
            torch.onnx.export(
                net, (torch.zeros(2, 4),), folder / "net.onnx", input_names=["x"], output_names=["y"], dynamo=True,
                dynamic_shapes=({0: rows},), verbose=False, external_data=False,
            )  # fmt: skip


@pytest.fixture(scope="module", params=["torchscript", "export", "onnx"])
def program(request, net, tmp_path_factory):
    folder = tmp_path_factory.mktemp(request.param)
    save_kind(net, folder, request.param)
    return folder


@pytest.fixture(scope="module")
def two(tmp_path_factory):
    """The folder of weights and a model file, and the model itself."""
    folder = tmp_path_factory.mktemp("two")
    (folder / "two.py").write_text(TWO_FILE)
    names = {}
    exec(TWO_FILE, names)
    torch.manual_seed(1)
    model = names["Two"]().eval()
    save_file(model.state_dict(), folder / "two.safetensors")
    return folder, model


def load(folder, *, cls=TensorHandler, manifest=None, batch_size=32, options=None, **settings):
    handler = cls()
    config = {"tsbatch": settings, "handler": options or {}}
    handler.load(ModelContext(model_dir=folder, batch_size=batch_size, config=config, manifest=manifest or {}))
    return handler


@pytest.fixture
def handler(net, tmp_path):
    save_kind(net, tmp_path, "torchscript")
    return load(tmp_path, options={"inputs": [X]})


@pytest.fixture
def pair(two):
    picture = {"name": "picture", "shape": [None, None], "dtype": "uint8"}
    inputs = [{"name": "row", "shape": [4], "dtype": "float32"}, picture]
    manifest = {"modelFile": "two.py", "serializedFile": "two.safetensors"}
    return load(two[0], manifest=manifest, options={"inputs": inputs, "outputs": ["score", "hidden"]})


def npy(array):
    file = io.BytesIO()
    np.save(file, array)
    return file.getvalue()


def npz(**arrays):
    file = io.BytesIO()
    np.savez_compressed(file, **arrays)
    return file.getvalue()


def file_request(raw, accept=None, kind="application/octet-stream"):
    headers = Headers({"accept": accept} if accept else {"content-type": kind})
    return Request(fields={"body": raw}, content_types={"body": kind}, headers=headers)


def ask(handler, *bodies):
    replies = handler.answer([body if isinstance(body, Request) else Request.of(body) for body in bodies])
    return [(reply.status, json.loads(reply.body)) for reply in replies]


def answer(handler, body):
    ((status, found),) = ask(handler, body)
    assert status == 200, found
    return found


def tensor(name, array, datatype="FP32"):
    return {"name": name, "datatype": datatype, "shape": list(array.shape), "data": array.ravel().tolist()}


@torch.inference_mode()
def test_every_kind_of_program_answers_as_the_model_alone(program, net):
    handler = load(program, options={"inputs": [X]})
    expected = [net(torch.from_numpy(row[None]))[0].numpy() for row in ROWS]
    for places in batches(ROWS):
        found = ask(handler, *[{"inputs": ROWS[place].tolist()} for place in places])
        assert [status for status, _ in found] == [200] * len(places)
        for place, (_, result) in zip(places, found, strict=True):
            assert np.abs(np.array(result) - expected[place]).max() < 1e-5


def test_a_graph_declares_its_inputs_itself(net, tmp_path):
    save_kind(net, tmp_path, "onnx")
    handler = load(tmp_path)
    assert handler.describe_handle()["inputs"] == [X]
    assert len(answer(handler, {"inputs": [1, 2, 3, 4]})) == 3
    ((status, body),) = ask(handler, {"inputs": [1, 2, 3]})
    assert status == 422
    assert "[4] for one item" in body["error"]["expected"]


@torch.inference_mode()
def test_several_inputs_and_outputs_have_names_and_pictures_their_own_size(pair, two):
    numbers = np.random.default_rng(1)
    sizes = [(2, 3), (3, 2), (2, 3), (5, 5)] * 10
    pictures = [numbers.integers(0, 255, size, dtype=np.uint8) for size in sizes]
    for places in batches(ROWS):
        bodies = [{"inputs": {"row": ROWS[p].tolist(), "picture": pictures[p].tolist()}} for p in places]
        for place, (status, found) in zip(places, ask(pair, *bodies), strict=True):
            score, hidden = two[1](torch.from_numpy(ROWS[place][None]), torch.from_numpy(pictures[place][None]))
            assert status == 200
            assert found["score"] == pytest.approx(float(score[0]), rel=1e-5, abs=1e-4)
            assert found["hidden"] == pytest.approx(hidden[0].tolist(), abs=1e-5)


def test_items_of_one_shape_share_a_pass(pair):
    passes = []
    model = pair.model
    pair.model = lambda rows, pictures: passes.append(len(rows)) or model(rows, pictures)
    small, large = np.zeros((2, 3)).tolist(), np.zeros((4, 4)).tolist()
    bodies = [{"inputs": {"row": [0, 1, 2, place], "picture": [small, large, small][place % 3]}} for place in range(9)]
    assert [status for status, _ in ask(pair, *bodies)] == [200] * 9
    passes.clear()  # with those that showed how the model returns the results of several items
    assert [status for status, _ in ask(pair, *bodies)] == [200] * 9
    assert sorted(passes) == [3, 6]


def test_every_shape_of_json_body(handler):
    row, rows = ROWS[0].tolist(), ROWS[:3].tolist()
    one = answer(handler, row)
    assert [answer(handler, body) for body in ({"inputs": row}, {"input": row}, {"data": row}, {"x": row})] == [one] * 4
    three = answer(handler, rows)
    assert three[0] == pytest.approx(one, abs=1e-6)
    assert answer(handler, {"inputs": rows}) == three
    assert answer(handler, {"instances": rows}) == {"predictions": three}
    assert answer(handler, [{"x": row} for row in rows]) == three


def test_open_inference_tensors(handler, pair):
    found = answer(handler, {"inputs": [tensor("x", ROWS[:3])]})
    assert found["outputs"][0]["shape"] == [3, 3]
    assert found["outputs"][0]["datatype"] == "FP32"
    assert np.reshape(found["outputs"][0]["data"], (3, 3)).tolist() == answer(handler, ROWS[:3].tolist())
    pictures = np.arange(12).reshape(2, 2, 3)
    named = answer(pair, {"inputs": [tensor("picture", pictures, "UINT8"), tensor("row", ROWS[:2])]})
    assert {output["name"]: output["shape"] for output in named["outputs"]} == {"score": [2], "hidden": [2, 3]}


def test_a_tensor_from_grpc(handler):
    body = {"id": "7", "model_name": "m", "model_version": "1", "inputs": [tensor("x", ROWS[:2])]}
    request = Request(fields={"body": body}, content_types={"body": "application/json"})
    found = answer(handler, request)
    assert found["id"] == "7"
    assert found["outputs"][0]["shape"] == [2, 3]


def test_files_in(handler, pair):
    expected = answer(handler, ROWS[:5].tolist())
    for array in (ROWS[:5], np.asfortranarray(ROWS[:5]), ROWS[:5].astype(">f4")):
        assert answer(handler, file_request(npy(array))) == expected
    assert answer(handler, file_request(npy(ROWS[:5]), kind="application/x-npy")) == expected
    assert answer(handler, file_request(npz(x=ROWS[:5]))) == expected
    assert answer(handler, file_request(npz(arr_0=ROWS[:5]))) == expected
    assert answer(handler, file_request(npy(ROWS[0]))) == pytest.approx(expected[0], abs=1e-6)
    form = Request(fields={"data": npy(ROWS[:5])}, content_types={"data": "application/octet-stream"})
    assert answer(handler, form) == expected
    pictures = np.arange(12, dtype=np.uint8).reshape(2, 2, 3)
    both = answer(pair, file_request(npz(row=ROWS[:2], picture=pictures)))
    alone = answer(pair, file_request(npz(row=ROWS[0], picture=pictures[0])))
    assert both[0]["hidden"] == pytest.approx(alone["hidden"], abs=1e-6)
    assert sorted(alone) == ["hidden", "score"]


@pytest.mark.parametrize("accept", ["application/x-npy", "application/octet-stream", "Application/X-NPY; q=1"])
def test_files_out(handler, pair, accept):
    expected = np.array(answer(handler, ROWS[:5].tolist()), np.float32)
    (reply,) = handler.answer([file_request(npy(ROWS[:5]), accept=accept)])
    assert reply.content_type == "application/x-npy"
    found = np.load(io.BytesIO(reply.body))
    assert found.dtype == np.float32
    assert np.array_equal(found, expected)
    (bare,) = handler.answer([file_request(npy(ROWS[0]), accept=accept)])
    assert np.abs(np.load(io.BytesIO(bare.body)) - expected[0]).max() < 1e-6
    pictures = np.arange(12, dtype=np.uint8).reshape(2, 2, 3)
    (named,) = pair.answer([file_request(npz(row=ROWS[:2], picture=pictures), accept=accept)])
    assert named.content_type == "application/x-npz"
    assert {name: array.shape for name, array in np.load(io.BytesIO(named.body)).items()} == {
        "score": (2,),
        "hidden": (2, 3),
    }


def test_json_asked_for_or_nothing_is_json(handler):
    for accept in ("application/json", "*/*", "text/html"):
        (reply,) = handler.answer([file_request(npy(ROWS[:2]), accept=accept)])
        assert reply.content_type == "application/json"
    kserve = Request(
        fields={"body": {"instances": ROWS[:2].tolist()}},
        content_types={"body": "application/json"},
        headers=Headers(NPY),
    )
    assert "predictions" in answer(handler, kserve)


def test_results_of_several_shapes_are_no_file(tmp_path):
    class Same(torch.nn.Module):
        def forward(self, x):
            return x * 2

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.jit.script(Same()).save(tmp_path / "same.pt")
    handler = load(tmp_path)
    body = {"inputs": [[1, 2], [3, 4, 5]]}
    assert answer(handler, body) == [[2, 4], [6, 8, 10]]
    request = Request(fields={"body": body}, content_types={"body": "application/json"}, headers=Headers(NPY))
    ((status, found),) = ask(handler, request)
    assert status == 422
    assert "differ in shape" in found["error"]["message"]


@pytest.mark.parametrize(
    "body, status, said",
    [
        ({"inputs": [1, 2, 3]}, 422, "has the shape [3]"),
        ({"inputs": [[1, 2, 3, 4], [1, 2, 3]]}, 422, "item 1 has the shape [3]"),
        ({"inputs": [[[1, 2, 3, 4]]]}, 422, "has the shape [1, 4]"),
        ({"inputs": ["a", "b", "c", "d"]}, 422, "has values that are not numbers"),
        ({"inputs": [1, 2, 3, None]}, 422, "has values that are not numbers"),
        ({"inputs": [1, 2, 3, [4]]}, 422, "nested unevenly"),
        ({"inputs": [1, 2, 3, 10**400]}, 422, "has values that are not numbers"),
        ({"inputs": [True, False, True, True]}, 422, "do not fit float32"),
        ({"inputs": [1, 2, 3, 1e300]}, 422, "do not fit float32"),
        ({"inputs": {"y": [1, 2, 3, 4]}}, 422, "lacks 'x'"),
        ({"inputs": {"x": [1, 2, 3, 4], "y": 1}}, 422, "an input that this model does not have"),
        ({"inputs": [1, 2, 3, 4], "parameters": {"top_k": 1}}, 422, "top_k does not exist"),
        ({"inputs": [[1, 2, 3, 4]] * 65}, 413, "65 items"),
        ({"inputs": []}, 400, "no item"),
    ],
)
def test_what_does_not_fit_is_4xx_and_hurts_nobody_else(handler, body, status, said):
    (found, error), (fine, _) = ask(handler, body, {"inputs": [1, 2, 3, 4]})
    assert (found, fine) == (status, 200)
    assert said in error["error"]["message"]


def test_broken_files_are_4xx_and_hurt_nobody_else(handler):
    whole, packed = npy(ROWS[:5]), npz(x=ROWS[:5])
    pickled = io.BytesIO()
    np.save(pickled, np.array([{"a": 1}], dtype=object), allow_pickle=True)
    bomb = npz(x=np.zeros((13_000_000, 1)))
    files = [raw[: len(raw) * tenth // 10] for raw in (whole, packed) for tenth in range(1, 10)]
    files += [pickled.getvalue(), bomb, npy(np.zeros((65, 4))), npy(np.zeros((0, 4)))]
    files += [npy(np.float32(1)), npz(a=ROWS, b=ROWS)]
    statuses = [status for status, _ in ask(handler, *map(file_request, files), ROWS[0].tolist())]
    assert statuses[:-1] == [400] * 18 + [422, 413, 413, 400, 422, 422]
    assert statuses[-1] == 200


def test_whole_numbers_for_an_input_of_whole_numbers(tmp_path):
    torch.manual_seed(0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.jit.trace(torch.nn.Embedding(10, 2), torch.zeros(1, 2, dtype=torch.long)).save(tmp_path / "table.pt")
    handler = load(tmp_path, options={"inputs": [{"name": "ids", "shape": [None], "dtype": "int64"}]})
    assert np.shape(answer(handler, [1, 2.0, 3])) == (3, 2)
    for wrong in ([1.5], [float("nan")], [True]):
        ((status, body),) = ask(handler, wrong)
        assert status == 422
        assert "do not fit int64" in body["error"]["message"]


def test_without_a_declaration_numbers_are_float32(net, tmp_path):
    save_kind(net, tmp_path, "torchscript")
    handler = load(tmp_path)
    assert answer(handler, {"inputs": ROWS[:2].tolist()}) == answer(handler, file_request(npy(ROWS[:2])))
    assert np.shape(answer(handler, [[1, 2, 3, 4]])) == (1, 3)


def test_without_a_declaration_a_number_too_large_for_float32_is_no_infinity(net, tmp_path):
    save_kind(net, tmp_path, "torchscript")
    handler = load(tmp_path)
    (status, body), (fine, _) = ask(handler, {"inputs": [[1, 2, 3, 1e300]]}, {"inputs": [[1, 2, 3, 1e30]]})
    assert (status, fine) == (422, 200)
    assert body["error"]["message"] == "item 0 has float64 values that do not fit float32"
    assert ask(handler, {"inputs": [[1, 2, 3, float("inf")]]})[0][0] == 200, "what is infinite already stays so"


def test_who_sent_a_shape_that_only_the_model_knows_to_be_wrong_is_told(net, tmp_path):
    save_kind(net, tmp_path, "torchscript")
    handler = load(tmp_path)
    bodies = [{"inputs": [row]} for row in ([1, 2], [1, 2, 3, 4], [1, 2], [5, 6, 7, 8], [1, 2, 3])]
    answers = ask(handler, *bodies)
    assert [status for status, _ in answers] == [422, 200, 422, 200, 422], "the wrong ones come first, too"
    error = answers[0][1]["error"]
    said = "RuntimeError: mat1 and mat2 shapes cannot be multiplied (1x2 and 4x8)"
    assert error["message"] == f"the model raised for an item of [2] float32: {said}"
    assert error["expected"] == "what it has answered before: [4] float32"
    assert error["stage"] == "inference"
    assert [status for status, _ in ask(handler, bodies[0])] == [422], "alone, later on"


def test_a_shape_that_the_weights_tell_is_known_before_the_first_request(net, tmp_path):
    save_kind(net, tmp_path, "torchscript")
    handler = load(tmp_path)
    answers = ask(handler, {"inputs": [[1, 2]]}, {"inputs": [[1, 2, 3]]})
    assert [status for status, _ in answers] == [422, 422]
    assert answers[0][1]["error"]["expected"] == "what it has answered before: [4] float32"


def test_a_model_that_has_answered_nothing_yet_gets_the_blame_itself(net, tmp_path):
    save_kind(net, tmp_path, "torchscript")
    handler = load(tmp_path)
    handler.model = Picky()  # without weights
    handler.prepare()
    answers = ask(handler, {"inputs": [[10, 2]]})
    assert [status for status, _ in answers] == [500]
    assert answers[0][1]["error"]["code"] == "handler_failed"


class Picky(torch.nn.Module):
    """Takes anything but numbers over 9, and pretends that 5 of them are too much for the memory."""

    def forward(self, x):
        if x.shape[1] == 5:
            raise torch.OutOfMemoryError("CUDA out of memory")
        if bool((x > 9).any()):
            raise ValueError("over 9")
        return x * 2, x + 1


def test_what_else_a_model_raises_is_its_own_fault(net, tmp_path):
    """Of a shape that it has answered, or for lack of memory."""
    save_kind(net, tmp_path, "torchscript")
    handler = load(tmp_path, options={"outputs": ["twice", "more"]})
    handler.model = Picky()
    handler.prepare()
    bodies = [{"inputs": [row]} for row in ([1, 2], [10, 2], [1, 2, 3, 4, 5])]
    answers = ask(handler, *bodies)
    assert [status for status, _ in answers] == [200, 500, 507]
    assert answers[1][1]["error"]["message"] == "inference raised ValueError: over 9"
    handler.options.outputs.append("third")
    ((status, body),) = ask(handler, bodies[0])
    assert status == 500
    assert body["error"]["message"] == "the model returns 2 outputs, and handler.outputs has 3 names"


def test_an_exported_program_declares_its_inputs_itself(net, tmp_path):
    save_kind(net, tmp_path, "export")
    handler = load(tmp_path)
    assert [entry.model_dump() for entry in handler.inputs] == [X]
    assert len(handler.examples()) == 1
    assert np.shape(answer(handler, {"inputs": [1, 2, 3, 4]})) == (3,)
    ((status, body),) = ask(handler, {"inputs": [1, 2]})
    assert (status, body["error"]["message"]) == (422, "item 0 has the shape [2]")


class Table(torch.nn.Module):
    def forward(self, row, picture, flag):
        return row.sum(1) + picture.float().mean((1, 2)) + flag


def test_open_sizes_and_types_of_an_exported_program(tmp_path):
    given = (torch.zeros(3, 4, dtype=torch.bfloat16), torch.zeros(3, 5, 7, dtype=torch.uint8), torch.zeros(3))
    n, h, w = (torch.export.Dim(name, min=1) for name in "nhw")
    exported = torch.export.export(Table().eval(), given, dynamic_shapes=({0: n}, {0: n, 1: h, 2: w}, {0: n}))
    found = declared_inputs(exported.module())
    assert [(entry.name, entry.shape, entry.dtype) for entry in found] == [
        ("row", [4], None),
        ("picture", [None, None], "uint8"),
        ("flag", [], "float32"),
    ]


def test_nothing_is_declared_for_an_item_without_a_dimension_of_the_batch():
    exported = torch.export.export(torch.nn.ReLU(), (torch.tensor(1.0),))
    assert declared_inputs(exported.module()) == []
    assert declared_inputs(torch.nn.ReLU()) == []


def test_it_warms_up_and_describes_itself(handler, pair):
    assert handler.examples() == [[0.0] * 4]
    assert pair.examples() == []
    told = pair.describe_handle()
    assert [entry["name"] for entry in told["inputs"]] == ["row", "picture"]
    assert told["outputs"] == ["score", "hidden"]


def test_two_inputs_of_one_name_are_a_wrong_setting(net, tmp_path):
    save_kind(net, tmp_path, "torchscript")
    with pytest.raises(LoadError, match=r"handler\.inputs: two of them have the same name"):
        load(tmp_path, options={"inputs": [X, X]})


def test_wrong_names_and_shapes_are_wrong_settings(net, tmp_path):
    save_kind(net, tmp_path, "torchscript")
    with pytest.raises(LoadError, match=r"handler\.outputs: two of them have the same name"):
        load(tmp_path, options={"outputs": ["score", "score"]})
    with pytest.raises(LoadError, match=r"handler\.inputs\.0\.shape\.0: Input should be greater than or equal to 0"):
        load(tmp_path, options={"inputs": [{**X, "shape": [-1, 4]}]})


def test_names_that_a_graph_has_not_are_a_wrong_setting(net, tmp_path):
    save_kind(net, tmp_path, "onnx")
    with pytest.raises(LoadError, match=r"handler\.inputs: expected the inputs of the graph: x"):
        load(tmp_path, options={"inputs": [{**X, "name": "y"}]})


def test_a_handler_of_ones_own_on_top_gets_tensors(net, tmp_path):
    class Best(TensorHandler):
        def postprocess(self, outputs, items):
            return outputs.argmax(dim=1).tolist()

    save_kind(net, tmp_path, "torchscript")
    handler = load(tmp_path, cls=Best)
    assert answer(handler, ROWS[:5].tolist()) == net(torch.from_numpy(ROWS[:5])).argmax(1).tolist()


def test_an_item_without_a_dimension_and_one_with_two(tmp_path):
    class Sums(torch.nn.Module):
        def forward(self, number, table):
            return number + table.sum((1, 2))

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.jit.script(Sums()).save(tmp_path / "sums.pt")
    inputs = [{"name": "number", "shape": []}, {"name": "table", "shape": [None, None], "dtype": "int64"}]
    handler = load(tmp_path, options={"inputs": inputs})
    bodies = [{"inputs": {"number": place, "table": [[place, 1], [2, 0.0]]}} for place in range(3)]
    assert [found for _, found in ask(handler, *bodies)] == [3.0, 5.0, 7.0]


def test_base64_is_no_file_of_numbers(handler):
    ((status, body),) = ask(handler, {"inputs": base64.b64encode(npy(ROWS)).decode()})
    assert status == 422
    assert "has values that are not numbers" in body["error"]["message"]


class Detector(torch.nn.Module):
    """One tensor per item, as detectors return after suppressing what overlaps."""

    def forward(self, x: torch.Tensor) -> list[torch.Tensor]:
        return [row[row > 0] for row in x]


class Recurrent(torch.nn.Module):
    """States with the layers first."""

    def __init__(self) -> None:
        super().__init__()
        self.cells = torch.nn.LSTM(3, 4, num_layers=2, batch_first=True)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        output, (hidden, _) = self.cells(x.unsqueeze(1))
        return output, hidden


class Mean(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.mean(0)


class Company(torch.nn.Module):
    """Answers depend on the neighbours, as with a batch norm in training mode."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x - x.mean(0, keepdim=True)


class Alone(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        assert x.shape[0] == 1
        return x * 2


def scripted(folder, model, **options):
    torch.manual_seed(0)
    torch.jit.script(model).save(folder / "net.pt")
    manifest = {"serializedFile": "net.pt"}
    return load(folder, manifest=manifest, options=options)


@pytest.mark.parametrize("shape", [[3], None])
@pytest.mark.parametrize("count", [1, 2, 3, 5])
def test_requests_with_as_many_results_as_requests_keep_their_own(tmp_path, shape, count):
    handler = scripted(tmp_path, Detector(), inputs=[{"name": "x", "shape": shape}])
    rows = [[place + 1.0] * (place % 3) + [0.0] * (3 - place % 3) for place in range(count)]
    answers = ask(handler, *[{"inputs": [row]} for row in rows])
    assert answers == [(200, [[value for value in row if value]]) for row in rows]


def test_a_recurrent_state_is_split_along_its_second_dimension(tmp_path):
    handler = scripted(tmp_path, Recurrent(), inputs=[{"name": "x", "shape": [3]}], outputs=["out", "state"])
    rows = [[1.0, 2.0, 3.0], [3.0, 1.0, 2.0]]  # as many as there are layers
    alone = [answer(handler, {"inputs": [row]})[0] for row in rows]
    together = [body[0] for _, body in ask(handler, *[{"inputs": [row]} for row in rows])]
    for one, other in zip(alone, together, strict=True):
        assert np.shape(one["state"]) == (2, 4)
        assert np.allclose(one["state"], other["state"], atol=1e-6)
        assert np.allclose(one["out"], other["out"], atol=1e-6)
    assert not np.allclose(alone[0]["state"], alone[1]["state"], atol=1e-3)


def test_results_that_cannot_be_told_apart_are_refused_at_load(tmp_path):
    with pytest.raises(
        LoadError, match=r"for 1, 2 and 3 items.*; expected tensors in which one dimension counts the items"
    ):
        scripted(tmp_path, Mean(), inputs=[{"name": "x", "shape": [3]}])


def test_results_that_cannot_be_told_apart_are_an_error_where_no_shape_is_declared(tmp_path):
    handler = scripted(tmp_path, Mean())
    (status, body), _ = ask(handler, {"inputs": [[1, 2, 3]]}, {"inputs": [[4, 5, 6]]})
    assert status == 500
    assert body["error"]["code"] == "contract_broken"


@pytest.mark.parametrize("model", [Company, Alone])
def test_a_model_that_wants_its_items_alone_gets_them_so(tmp_path, model):
    handler = scripted(tmp_path, model(), inputs=[{"name": "x", "shape": [3]}])
    rows = [[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]]
    expected = [[[0.0] * 3]] * 2 if model is Company else [[[2 * value for value in row]] for row in rows]
    assert [body for _, body in ask(handler, *[{"inputs": [row]} for row in rows])] == expected


def test_one_request_does_not_change_the_next(net, tmp_path):
    """Four scalars of a batch look like one row of four numbers."""
    save_kind(net, tmp_path, "torchscript")
    handler = load(tmp_path)
    for body in ({"inputs": 5}, [1, 2, 3, 4], {"inputs": 5}, [1, 2, 3, 4]):
        ((status, found),) = ask(handler, body)
        assert status == 422
        assert "Traceback" not in str(found)
        assert "site-packages" not in str(found)
    assert ask(handler, {"inputs": [[1, 2, 3, 4]]})[0][0] == 200


class Guarded(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if bool((x > 9).any()):
            raise ValueError("over 9")
        return x * 2


def test_a_models_own_fault_shows_no_trace_of_its_code(tmp_path):
    handler = scripted(tmp_path, Guarded(), inputs=[{"name": "x", "shape": [2]}])
    (bad, fine) = ask(handler, {"inputs": [[10, 2]]}, {"inputs": [[1, 2]]})
    assert fine == (200, [[2.0, 4.0]])
    assert bad[0] == 500
    message = bad[1]["error"]["message"]
    assert message.startswith("inference raised ")
    assert message.endswith("over 9")
    assert "\n" not in message
    assert "Traceback" not in message
