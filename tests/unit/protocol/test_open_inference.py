"""The Open Inference Protocol, read and written; gRPC bodies are as a running TorchServe 0.12.0 makes them."""

from __future__ import annotations

import base64
import json

import numpy as np
import orjson
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from tsbatch.errors import BadRequest, ContractBroken, PayloadTooLarge, Unprocessable
from tsbatch.protocol.open_inference import from_grpc, is_open_inference, write_tensors
from tsbatch.protocol.payload import read_payload
from tsbatch.protocol.request import Headers, Request


def rest(*tensors, **body):
    headers = Headers({"Content-Type": "application/json", "explain": "False"})
    return Request(
        fields={"body": {"inputs": list(tensors), **body}}, content_types={"body": "application/json"}, headers=headers
    )


def grpc(*tensors):
    return Request(
        fields={"body": {"id": "", "model_name": "m", "inputs": list(tensors)}},
        content_types={"body": "application/json"},
    )


def tensor(datatype, shape, data, name="x", **extra):
    return {"name": name, "datatype": datatype, "shape": shape, "data": data, **extra}


def test_what_is_an_open_inference_body():
    assert is_open_inference({"inputs": [tensor("FP32", [1], [1])]})
    assert is_open_inference({"inputs": [], "model_name": "m", "id": ""})  # ModelInfer without a tensor
    assert not is_open_inference({"inputs": []})
    assert not is_open_inference({"inputs": [{"name": "Ann"}]})
    assert not is_open_inference({"inputs": ["datatype"]})
    assert not is_open_inference({"instances": []})


def test_grpc_is_told_from_rest():
    text = tensor("BYTES", [1], ["YWJj"])
    assert from_grpc(grpc(text))
    assert not from_grpc(rest(text, model_name="m", id="1"))  # a REST call has headers
    predictions = Request(fields={"body": {"inputs": [text], "model_name": "m", "id": "1"}})
    assert not from_grpc(predictions)  # gRPC Predictions has no content type


def test_strings_over_rest_and_grpc():
    assert read_payload(rest(tensor("BYTES", [2], ["YWJj", "ä"])), wants="text").values == ["YWJj", "ä"]
    assert read_payload(grpc(tensor("BYTES", [2], ["YWJj", "w6Q="])), wants="text").values == ["abc", "ä"]
    assert read_payload(grpc(tensor("BYTES", [1], ["YWJj"])), wants="json").values == ["abc"]
    assert read_payload(grpc(tensor("BYTES", [1], ["/w=="])), wants="bytes").values == [b"\xff"]
    with pytest.raises(BadRequest, match="not UTF-8"):
        read_payload(grpc(tensor("BYTES", [1], ["/w=="])), wants="text")


def test_shapes_of_strings():
    assert read_payload(rest(tensor("BYTES", [2, 1], [["a"], ["b"]])), wants="text").values == ["a", "b"]
    assert read_payload(rest(tensor("BYTES", [1, 2], ["a", "b"]))).values == [["a", "b"]]
    assert read_payload(rest(tensor("BYTES", [2, 1], ["a", "b"]))).values == [["a"], ["b"]]
    with pytest.raises(Unprocessable, match="item 0 is a list"):
        read_payload(rest(tensor("BYTES", [1, 2], ["a", "b"])), wants="text")


@pytest.mark.parametrize(
    "datatype, dtype, data",
    [
        ("BOOL", "bool", [True, False]),
        ("INT8", "int8", [-128, 127]),
        ("INT16", "int16", [-(2**15), 2**15 - 1]),
        ("INT32", "int32", [-(2**31), 2**31 - 1]),
        ("INT64", "int64", [-(2**63), 2**63 - 1]),
        ("UINT8", "uint8", [0, 255]),
        ("UINT16", "uint16", [0, 2**16 - 1]),
        ("UINT32", "uint32", [0, 2**32 - 1]),
        ("UINT64", "uint64", [1, 2**64 - 1]),
        ("FP16", "float16", [0.5, -2]),
        ("FP32", "float32", [0.1, 3]),
        ("FP64", "float64", [0.1, 1e300]),
        ("BF16", "float32", [0.5, 2]),
    ],
)
def test_numbers_of_every_datatype(datatype, dtype, data):
    values = read_payload(rest(tensor(datatype, [2], data))).values
    assert [value.dtype for value in values] == [np.dtype(dtype)] * 2
    assert values == [np.dtype(dtype).type(number) for number in data]


def test_rows_flat_or_nested():
    flat = read_payload(rest(tensor("FP32", [2, 3], [1, 2, 3, 4, 5, 6])))
    nested = read_payload(rest(tensor("FP32", [2, 3], [[1, 2, 3], [4, 5, 6]])))
    np.testing.assert_array_equal(flat.values, [[1, 2, 3], [4, 5, 6]])
    np.testing.assert_array_equal(nested.values, flat.values)
    assert flat.values[0].dtype == np.float32
    assert flat.single is False


def test_unsigned_numbers_come_from_java_as_signed_ones():
    assert read_payload(grpc(tensor("UINT32", [2], [-1, 1]))).values == [2**32 - 1, 1]
    assert read_payload(grpc(tensor("UINT64", [2], [-1, 1]))).values == [2**64 - 1, 1]


def test_several_inputs_are_one_dict_an_item():
    request = rest(tensor("INT64", [2, 2], [1, 2, 3, 4], "ids"), tensor("BYTES", [2], ["a", "b"], "text"))
    first, second = read_payload(request).values
    assert first["ids"].tolist() == [1, 2]
    assert second["text"] == "b"


def test_parameters():
    text = tensor("BYTES", [1], ["a"])
    assert read_payload(rest(text, parameters={"k": 1}), wants="text").parameters == {"k": 1}
    extra = base64.b64encode(b'{"k": 2}').decode()
    payload = read_payload(
        grpc(tensor("BYTES", [1], ["YQ=="]), tensor("BYTES", [1], [extra], "parameters")), wants="text"
    )
    assert (payload.values, payload.parameters) == (["a"], {"k": 2})


@pytest.mark.parametrize(
    "request_, says",
    [
        (rest(tensor("FP32", [2, 3], [1, 2])), r"2 values, and its shape \[2, 3\] needs 6"),
        (rest(tensor("BYTES", [2], ["a"])), r"1 values, and its shape \[2\] needs 2"),
        (rest(tensor("FP32", [2], [[1], [1, 2]])), "unevenly"),
        (rest(tensor("FP32", [1], ["a"])), "not all FP32"),
        (rest(tensor("FP32", [1], [None])), "not all FP32"),
        (rest(tensor("FP32", [1], [1e300])), "does not fit FP32"),
        (rest(tensor("INT8", [1], [128])), "does not fit INT8"),
        (rest(tensor("INT64", [1], [2**63])), "does not fit INT64"),
        (rest(tensor("INT64", [1], [1.5])), "not all INT64"),
        (rest(tensor("UINT8", [1], [-1])), "does not fit UINT8"),
        (rest(tensor("UINT64", [1], [-1])), "does not fit UINT64"),
        (rest(tensor("UINT64", [2], [1, 2**64])), "not all UINT64"),
        (rest(tensor("BOOL", [1], [1])), "not all BOOL"),
        (rest(tensor("BYTES", [1], [1])), "not all strings"),
        (rest(tensor("COMPLEX", [1], [1])), "COMPLEX"),
        (rest(tensor(["FP32"], [1], [1])), "not known"),
        (rest(tensor("FP32", [], [1])), "shape"),
        (rest(tensor("FP32", [-1], [1])), "shape"),
        (rest(tensor("FP32", "1", [1])), "shape"),
        (rest(tensor("FP32", [1, 2**70, 0], [])), "too large"),
        (rest(tensor("FP32", [0], [])), "no item"),
        (rest({"name": "x", "datatype": "FP32", "data": [1]}), "lacks shape"),
        (rest({"name": "x", "datatype": "FP32", "shape": [1]}), "no data"),
        (rest(tensor("FP32", [1], [1]), tensor("FP32", [1], [1])), "two tensors named 'x'"),
        (rest(tensor("FP32", [1], [1]), tensor("FP32", [2], [1, 2], "y")), "'x' 1, 'y' 2"),
        (rest(tensor("FP32", [1], [1]), "y"), "not a tensor"),
        (rest(tensor("FP32", [1], [1]), paramters={}), "'paramters'"),
        (rest(tensor("FP32", [1], [1]), parameters=[1]), "a list"),
        (rest(tensor("FP32", [1], [1]), tensor("FP32", [1], [1], "parameters")), "not one string"),
        (grpc({"name": "x", "datatype": "FP16", "shape": [1]}), "none of FP16 on from gRPC"),
        (grpc(tensor("FP32", [1], [])), "0 values"),
        (grpc(tensor("BYTES", [1], ["*"])), "not base64"),
        (grpc(), "no item"),
    ],
)
def test_what_cannot_be_read_is_a_400_that_says_why(request_, says):
    with pytest.raises(BadRequest, match=says):
        read_payload(request_)
    assert request_.protocol == "open-inference"


def test_dropped_raw_contents_are_named():
    with pytest.raises(BadRequest) as caught:
        read_payload(grpc(tensor("FP32", [1], [])))
    assert "raw_input_contents" in caught.value.expected


def test_too_many_items_is_a_413():
    with pytest.raises(PayloadTooLarge, match="65 items, but at most 64"):
        read_payload(rest(tensor("FP32", [65], [])))


def test_results_of_one_shape_are_one_tensor():
    (output,) = write_tensors([np.float32([1, 2]), np.float32([3, 4])], grpc=False)
    assert (output["name"], output["datatype"], output["shape"]) == ("output", "FP32", [2, 2])
    np.testing.assert_array_equal(output["data"], [1, 2, 3, 4])


@pytest.mark.parametrize(
    "results, datatype, shape, data",
    [
        ([1, 2], "INT64", [2], [1, 2]),
        ([0.5], "FP64", [1], [0.5]),
        ([True, False], "BOOL", [2], [True, False]),
        ([np.uint8(3)], "UINT8", [1], [3]),
        ([[1, 2], [3, 4]], "INT64", [2, 2], [1, 2, 3, 4]),
        ([np.float16([0.5])], "FP32", [1, 1], [0.5]),
        ([torch.tensor([0.5], dtype=torch.bfloat16)], "FP32", [1, 1], [0.5]),
        ([torch.ones(2, 2, requires_grad=True)], "FP32", [1, 2, 2], [1, 1, 1, 1]),
        ([np.array([1.5], ">f8")], "FP64", [1, 1], [1.5]),
        (["a", "b"], "BYTES", [2], ["a", "b"]),
        ([b"\xff"], "BYTES", [1], ["/w=="]),
        ([[1], [1, 2]], "BYTES", [2], ["[1]", "[1,2]"]),
        ([1, "a"], "BYTES", [2], ["1", '"a"']),
        ([1, True], "BYTES", [2], ["1", "true"]),
        ([None, {"a": 1}], "BYTES", [2], ["null", '{"a":1}']),
    ],
)
def test_results_as_tensors(results, datatype, shape, data):
    (output,) = write_tensors(results, grpc=False)
    assert (output["datatype"], output["shape"], list(output["data"])) == (datatype, shape, data)


def test_dicts_become_a_tensor_for_each_key():
    first, second = write_tensors([{"e": np.float32([1, 2]), "n": "a"}, {"e": np.float32([3, 4])}], grpc=False)
    assert (first["name"], first["datatype"], first["shape"]) == ("e", "FP32", [2, 2])
    assert (second["name"], second["datatype"], second["data"]) == ("n", "BYTES", ['"a"', "null"])


def test_grpc_is_given_plain_values_because_java_writes_their_json_text():
    (output,) = write_tensors([{"a": [1]}, ["b"]], grpc=True)
    assert output["data"] == [{"a": [1]}, ["b"]]


def test_infinite_numbers():
    results = [np.float32([np.nan, np.inf, -np.inf, 1])]
    assert write_tensors(results, grpc=True)[0]["data"] == ["NaN", "Infinity", "-Infinity", 1.0]
    assert orjson.dumps(write_tensors(results, grpc=False)[0]["data"], option=orjson.OPT_SERIALIZE_NUMPY).startswith(
        b"[null"
    )
    with pytest.raises(ContractBroken, match="NaN"):
        write_tensors(results, grpc=False, nan="error")


def test_a_result_that_cannot_be_written_is_named():
    with pytest.raises(ContractBroken, match=r"answer\[1\]\['a'\] is a set"):
        write_tensors([{1: 2}, {"a": {1}, 1: 3}], grpc=False)


NUMBERS = st.sampled_from(["bool", "int8", "uint16", "int64", "uint64", "float32", "float64"]).flatmap(
    lambda dtype: hnp.arrays(
        dtype,
        hnp.array_shapes(min_dims=1, max_dims=3, max_side=4),
        elements=hnp.from_dtype(np.dtype(dtype), allow_nan=False, allow_infinity=False),
    )
)


@settings(deadline=None)
@given(NUMBERS)
def test_numbers_survive_the_way_out_and_in(array):
    (output,) = write_tensors(list(array), grpc=False)
    sent = json.loads(orjson.dumps(output, option=orjson.OPT_SERIALIZE_NUMPY))
    back = read_payload(rest(sent)).values
    np.testing.assert_array_equal(np.array(back), array)
    assert np.array(back).dtype == array.dtype
