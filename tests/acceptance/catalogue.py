"""Subclasses that misbehave when one value is among their inputs, and what its sender must then be told.

Every model doubles numbers. Innocent requests must get their doubles, whatever the guilty one does to the batch.
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tsbatch.archive.model_config import ModelConfig
from tsbatch.packaging.builder import package

GUILTY = 13
"""The value that sets a misbehaviour off, where there is only one; from 101 on there are several."""

HANDLER = '''"""Doubles numbers, and misbehaves."""
import asyncio
import sys

import numpy as np
import torch

from tsbatch import BatchHandler
from tsbatch.errors import BadRequest
from tsbatch.protocol.reply import Reply

GUILTY = {guilty}


def among(items):
    return any(item.value == GUILTY for item in items)


def spoil(items, entries, bad):
    return [bad if item.value == GUILTY else entry for item, entry in zip(items, entries)]


def circle():
    ring = []
    ring.append(ring)
    return ring


class Misbehaves(BatchHandler):
    def load_model(self):
        return lambda numbers: 2 * numbers

{body}
'''


@dataclass(frozen=True)
class Trigger:
    """One guilty value, and what its sender must get.

    Attributes:
        value: what sets the misbehaviour off.
        status: the guilty request's status.
        says: a part of its error's message.
        answer: its answer, where the misbehaviour is one that can be served.
        what: what happens, for people.
    """

    value: int = GUILTY
    status: int = 500
    says: str = ""
    answer: Any = None
    what: str = ""


@dataclass(frozen=True)
class Misbehaviour:
    """One subclass.

    Attributes:
        name: the model's name.
        body: its methods.
        triggers: the values that set it off.
    """

    name: str
    body: str
    triggers: tuple[Trigger, ...]

    def archive(self, folder: Path, *, delay: int) -> Path:
        """Pack it, for batches of 8."""
        source = folder / f"{self.name.replace('-', '_')}_handler.py"
        source.write_text(HANDLER.format(guilty=GUILTY, body=textwrap.indent(self.body, "    ")), encoding="utf-8")
        config = ModelConfig(workers=1, batch_size=8, max_batch_delay=delay)
        return package(name=self.name, handler=source, config=config, output_dir=folder, force=True)


def returning(stage: str, name: str, expression: str, *, status: int = 500, says: str = "", answer: Any = None) -> Any:
    """A subclass whose stage returns ``expression`` when the guilty value is among its inputs."""
    heads = {
        "decode_request": ("request", "items = super().decode_request(request)", "among(items)", "items"),
        "preprocess": ("items", "features = super().preprocess(items)", "among(items)", "features"),
        "collate": ("features", "tensors = super().collate(features)", "GUILTY in tensors", "tensors"),
        "lengths": ("features", "lengths = [1] * len(features)", "GUILTY in features", "lengths"),
        "inference": ("tensors", "outputs = super().inference(tensors)", "2 * GUILTY in outputs", "outputs"),
        "postprocess": ("outputs, items", "results = outputs.tolist()", "among(items)", "results"),
        "encode_response": (
            "results, request",
            "reply = super().encode_response(results, request)",
            "results[0] == 2 * GUILTY",
            "reply",
        ),
    }
    arguments, right, condition, value = heads[stage]
    body = f"""\
def {stage}(self, {arguments}):
    {right}
    return {expression} if {condition} else {value}
"""
    trigger = Trigger(status=status, says=says, answer=answer, what=f"{stage} returns {expression}")
    return Misbehaviour(f"{stage.replace('_', '-')}-{name}", body, (trigger,))


RAISES = {
    101: ('raise ValueError("bad luck")', 500, "ValueError: bad luck"),
    102: ('raise RuntimeError("CUDA error: device-side assert triggered")', 500, "CUDA error"),
    103: ("raise MemoryError", 507, "ran out of memory"),
    104: ('raise RuntimeError("größer als erlaubt: 日本語 🙈")', 500, "größer als erlaubt: 日本語 🙈"),
    105: ("sys.exit(3)", 500, "SystemExit"),
    106: ('raise RuntimeError("line one\\nline two\\r\\nX-Evil: yes")', 500, "line two"),
    107: ('raise KeyError("half \\ud83d of a pair")', 500, "KeyError"),
    108: ("raise StopIteration", 500, "StopIteration"),
    109: ('raise BadRequest("this client is wrong", expected="another number")', 400, "this client is wrong"),
    110: ('raise type("Odd", (BadRequest,), {"__init__": lambda self: None})()', 400, ""),
    111: ('raise type("Odd", (BadRequest,), {"status": None})("no status")', 500, "no status"),
    112: ('raise type("PanicException", (BaseException,), {})("panicked in Rust")', 500, "panicked in Rust"),
    113: ("raise asyncio.CancelledError", 500, "CancelledError"),
    114: ('raise type("Mute", (Exception,), {"__str__": lambda self: 1 / 0})()', 500, "Mute"),
    115: ('raise RuntimeError("DefaultCPUAllocator: can\'t allocate memory")', 507, "ran out of memory"),
    116: ('raise RuntimeError("x" * 10_000_000)', 500, "xxx"),
    117: ("return [][circle() and 0]", 500, "IndexError"),
}
"""Guilty value: what is done, the status and the text its sender gets."""


def raising(stage: str) -> Misbehaviour:
    """A subclass whose stage raises, each guilty value something else."""
    arguments, seen, right = {
        "decode_item": ("value", "[value]", "value"),
        "decode_request": ("request", "[request.fields['body']['inputs']]", "super().decode_request(request)"),
        "preprocess": ("items", "[item.value for item in items]", "super().preprocess(items)"),
        "collate": ("features", "[int(feature) for feature in features]", "super().collate(features)"),
        "inference": ("tensors", "tensors.tolist()", "super().inference(tensors)"),
        "postprocess": ("outputs, items", "[item.value for item in items]", "outputs.tolist()"),
        "encode_response": (
            "results, request",
            "[int(result) // 2 for result in results]",
            "super().encode_response(results, request)",
        ),
    }[stage]
    lines = [f"def {stage}(self, {arguments}):", f"    seen = {seen}"]
    for value, (act, _, _) in RAISES.items():
        lines += [f"    if {value} in seen:", f"        {act}"]
    triggers = tuple(
        Trigger(value, status, says, what=f"{stage}: {act}") for value, (act, status, says) in RAISES.items()
    )
    return Misbehaviour(f"{stage.replace('_', '-')}-raises", "\n".join([*lines, f"    return {right}"]), triggers)


RAISING = [
    raising(stage)
    for stage in (
        "decode_item", "decode_request", "preprocess", "collate", "inference", "postprocess", "encode_response",
    )
]  # fmt: skip

RETURNING = [
    # Too few, too many, or no list at all: the error names both numbers.
    returning("postprocess", "too-few", "results[:-1]", says="postprocess returned 0 results for 1 inputs"),
    returning("postprocess", "too-many", "[*results, 1]", says="postprocess returned 2 results for 1 inputs"),
    returning("postprocess", "dict", "dict(enumerate(results))", says="postprocess returned a dict for 1 inputs"),
    returning("postprocess", "none", "None", says="postprocess returned None for 1 inputs"),
    returning("postprocess", "generator", "(result for result in results)", says="returned a generator"),
    returning("postprocess", "text", "'x' * len(items)", says="returned a str"),
    returning("postprocess", "number", "26.0", says="returned a float"),
    returning("postprocess", "scalar-tensor", "torch.tensor(26.0)", says="returned a Tensor"),
    # What means the same as a list of numbers is taken as that.
    returning("postprocess", "tuple", "tuple(results)", status=200, answer=26.0),
    returning("postprocess", "tensor", "outputs", status=200, answer=26.0),
    returning("postprocess", "array", "np.array(results)", status=200, answer=26.0),
    returning("postprocess", "numpy-scalars", "[np.float32(result) for result in results]", status=200, answer=26.0),
    returning("postprocess", "tensors", "[torch.tensor(result) for result in results]", status=200, answer=26.0),
    returning("postprocess", "bfloat16", "outputs.bfloat16()", status=200, answer=26.0),
    # What JSON lacks.
    returning("postprocess", "nan", "spoil(items, results, float('nan'))", status=200, answer=None),
    returning("postprocess", "nan-array", "spoil(items, results, np.array([np.nan]))", status=200, answer=[None]),
    returning("postprocess", "surrogates", "spoil(items, results, 'half \\ud83d of it')", says="surrogate"),
    returning("postprocess", "surrogate-key", "spoil(items, results, {'\\ud83d': 1})", says="surrogate"),
    returning("postprocess", "circular", "spoil(items, results, circle())", says="contains itself"),
    returning("postprocess", "complex", "spoil(items, results, torch.tensor([1j]))", says="complex64"),
    returning("postprocess", "objects", "spoil(items, results, object())", says="object"),
    returning("postprocess", "set", "spoil(items, results, {1, 2})", says="set"),
    returning("postprocess", "huge-int", "spoil(items, results, 10 ** 30)", says="64 bits"),
    returning("postprocess", "inner-generator", "spoil(items, results, (n for n in 'ab'))", says="generator"),
    returning("postprocess", "too-large", "spoil(items, results, 'x' * 7_000_000)", says="7,000,002 bytes"),
    # The other stages.
    returning("decode_request", "none", "None", says="decode_request returned None"),
    returning("decode_request", "tuple", "tuple(items)", says="decode_request returned"),
    returning("decode_request", "values", "[item.value for item in items]", says="decode_request returned"),
    returning("decode_request", "empty", "[]", says="decode_request returned"),
    returning("preprocess", "too-few", "features[:-1]", says="preprocess returned 0 features for 1 inputs"),
    returning("preprocess", "none", "None", says="preprocess returned None"),
    returning("preprocess", "generator", "(feature for feature in features)", says="returned a generator"),
    returning("preprocess", "texts", "spoil(items, features, 'thirteen')", says="collate cannot stack"),
    returning("lengths", "too-few", "lengths[:-1]", status=200, answer=26),
    returning("lengths", "none-inside", "[None] * len(features)", status=200, answer=26),
    returning("collate", "none", "None", says="TypeError"),
    returning("inference", "too-few", "outputs[:-1]", says="inference returned 0 outputs for 1 inputs"),
    returning("inference", "none", "None", says="inference returned None"),
    returning("inference", "one-for-all", "outputs.sum()", says="inference returned a Tensor"),
    returning("inference", "generator", "(row for row in outputs)", says="returned a generator"),
    returning("encode_response", "none", "None", says="encode_response returned"),
    returning("encode_response", "bytes", "reply.body", says="encode_response returned"),
    returning("encode_response", "text-body", "Reply('26')", says="encode_response returned"),
    returning("encode_response", "no-status", "Reply(b'26', status='OK')", says="status"),
    returning("encode_response", "huge-status", "Reply(b'26', status=2 ** 40)", says="status"),
    returning("encode_response", "no-headers", "Reply(b'26', headers=None)", says="headers"),
    returning("encode_response", "number-header", "Reply(b'26', headers={'X-Count': 3})", says="headers"),
    returning(
        "encode_response", "line-break", "Reply(b'26', headers={'X-Note': 'a\\r\\nX-Evil: yes'})", status=200, answer=26
    ),
    returning(
        "encode_response", "header-name", "Reply(b'26', headers={'X Note:\\n': 'a'})", status=200, answer=26
    ),
    returning(
        "encode_response", "foreign-header", "Reply(b'26', headers={'X-Größe': '日本'})", status=200, answer=26
    ),
    returning(
        "encode_response", "framing", "Reply(b'26', headers={'Content-Length': '9', 'Transfer-Encoding': 'chunked'})",
        status=200, answer=26,
    ),
    returning("encode_response", "stream", "Reply(b'26', headers={'ts_stream_next': 'true'})", status=200, answer=26),
    returning("encode_response", "phrase", "Reply(b'26', phrase='schön 日本\\r\\n')", status=200, answer=26),
    returning(
        "encode_response", "content-type", "Reply(b'26', content_type='text/plain; x=日本\\r\\nX-Evil: yes')",
        status=200, answer=26,
    ),
    returning("encode_response", "no-content-type", "Reply(b'26', content_type=None)", says="content type"),
    returning("encode_response", "too-large", "Reply(b'x' * 7_000_000)", says="7,000,000 bytes, over the server's"),
]  # fmt: skip

CATALOGUE = [*RAISING, *RETURNING]


def triggers(catalogue: Iterable[Misbehaviour]) -> Iterator[Trigger]:
    """All guilty values of a catalogue."""
    for misbehaviour in catalogue:
        yield from misbehaviour.triggers
