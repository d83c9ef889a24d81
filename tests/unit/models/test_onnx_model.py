from __future__ import annotations

import importlib.util

import pytest
import torch

from tsbatch.errors import LoadError
from tsbatch.models.onnx_model import OnnxGraph

CPU = torch.device("cpu")


class Two(torch.nn.Module):
    def forward(self, left, right):
        return left + right, left - right


def export(model, tensors, path, names):
    torch.onnx.export(
        model, tensors, path, dynamo=True, verbose=False, external_data=False,
        input_names=names[0], output_names=names[1],
    )  # fmt: skip
    return path


@pytest.mark.filterwarnings("ignore")
def test_inputs_by_position_and_name_outputs_one_or_several(tmp_path):
    names = (["left", "right"], ["sum", "difference"])
    path = export(Two(), (torch.zeros(2), torch.zeros(2)), tmp_path / "two.onnx", names)
    graph = OnnxGraph(path, CPU)
    left, right = torch.tensor([1.0, 2.0]), torch.tensor([10.0, 20.0])
    assert graph(left, right)["sum"].tolist() == [11, 22]
    assert graph(right=right, left=left)["difference"].tolist() == [-9, -18]
    one = OnnxGraph(export(torch.nn.ReLU(), (torch.zeros(2),), tmp_path / "one.onnx", (["x"], ["y"])), CPU)
    assert one(torch.tensor([-1.0, 2.0])).tolist() == [0, 2]


def test_what_is_no_graph_is_one_line(tmp_path):
    (tmp_path / "x.onnx").write_bytes(b"no graph")
    with pytest.raises(LoadError, match=r"x\.onnx: not an ONNX graph") as caught:
        OnnxGraph(tmp_path / "x.onnx", CPU)
    assert "\n" not in str(caught.value)


def test_without_onnx_runtime(tmp_path, monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(LoadError, match=r"pip install 'tsbatch\[onnx\]'"):
        OnnxGraph(tmp_path / "x.onnx", CPU)
