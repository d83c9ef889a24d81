"""Prove at load time that a text model's answers in a batch equal its answers to each text alone.

The texts are those that reveal what goes wrong in batches: a single word, clauses with punctuation, several languages,
special tokens inside a text, neighbours that are much longer and much shorter, the same text twice, and random tokens.
Both the task's answers (``inference``) and the token states of the encoder are compared.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final, Protocol

import numpy as np
import torch

from tsbatch.batching.rows import split, to_cpu
from tsbatch.batching.strategy import Mode
from tsbatch.errors import LoadError, first_line
from tsbatch.models.engines import Engine
from tsbatch.protocol.request import Item, Request
from tsbatch.settings import Settings
from tsbatch.tasks.shared.grouping import group_equal
from tsbatch.tasks.text.token_features import Tokens
from tsbatch.worker.resources import to_device

if TYPE_CHECKING:
    from collections.abc import Iterator

TEXTS: Final = (
    "a",
    "Rain fell, and we left; the café (on Main St.) was closed.",
    "Grüße! Привет, мир. 今日は良い天気です。 مرحبا",
    "A sentence of ordinary length, like the ones that people send all day.",
    "Whether it rains or snows, nobody knows: bring a coat.",
)
TOLERANCES: Final = {"float32": 3e-4, "float16": 1e-2, "bfloat16": 6e-2, "int8": 6e-2}
"""Largest relative difference that counts as equal: rounding in batches of other sizes, in each number format."""
WORK: Final = 3 * 10**9
"""Parameters times tokens of the longest text, so that the proof of a big model stays short."""
WINDOWS: Final = ("sliding_window", "local_attention", "attention_window", "block_size")
"""Settings of a model whose attention changes beyond so many tokens."""
MAX_LENGTH: Final = 1100
SPECIAL: Final = ("pad_token", "sep_token", "mask_token", "unk_token", "cls_token", "bos_token", "eos_token")


class Provable(Protocol):
    """The part of a text handler that the proof uses; ``TextHandler`` documents each member."""

    model: Any
    tokenizer: Any
    device: Any
    settings: Settings
    engine: Engine

    def example(self, text: str) -> Any: ...  # noqa: D102 - documented on TextHandler, as are all members below
    def decode_request(self, request: Request) -> list[Item]: ...  # noqa: D102
    def encode(self, texts: Sequence[str]) -> list[Tokens]: ...  # noqa: D102
    def preprocess(self, items: Sequence[Item]) -> Any: ...  # noqa: D102
    def collate(self, features: Sequence[Any]) -> Any: ...  # noqa: D102
    def inference(self, tensors: Any) -> Any: ...  # noqa: D102
    def token_limit(self) -> int: ...  # noqa: D102


class Proof(Protocol):
    """A comparison of answers in batches with answers alone.

    Attributes:
        tolerance: the largest relative difference that counts as equal.
    """

    tolerance: float

    def difference(self, mode: Mode) -> float:
        """Return the largest relative difference between answers in batches of this mode and alone."""


class BatchProof:
    """The answers of a loaded handler to each text alone, and comparisons with batches.

    Attributes:
        tolerance: the largest relative difference that counts as equal.
    """

    def __init__(self, handler: Provable) -> None:
        """Answer each text alone.

        Raises:
            LoadError: the model can answer no text, or its answer to a text alone is not repeatable.
        """
        self._handler = handler
        self.tolerance = TOLERANCES[number_format(handler)]
        self.features: list[Tokens] = []
        self._alone: list[list[torch.Tensor]] = []
        error: Exception | None = None
        probes = _probes(handler)
        self._answers = handler.inference if probes else self._model_outputs
        for feature in probes or _plain_probes(handler):
            answers = self._answer_alone(feature)
            if isinstance(answers, Exception):
                error = answers
            else:
                self.features.append(feature)
                self._alone.append(answers)
        if not self.features:
            reason = first_line(error) if error else "no example text was accepted"
            raise LoadError(f"the model cannot run on token ids alone: {reason}") from error
        self._scales = _scales(self._alone)
        self._check_repeatable()

    def difference(self, mode: Mode) -> float:
        """Return the largest relative difference between answers in batches of this mode and alone.

        Raises:
            Exception: whatever the model raises.
        """
        places = list(range(len(self.features)))
        if mode == "equal":
            groups = group_equal([len(feature) for feature in self.features])
        elif mode == "single":
            return 0.0
        else:
            groups = [[*places, 1 % len(places)]]
        worst = 0.0
        for group in groups:
            answers = self._run([self.features[place] for place in group])
            worst = max([worst, *(self._distance(place, own) for place, own in zip(group, answers, strict=True))])
        return worst

    def _answer_alone(self, feature: Tokens) -> list[torch.Tensor] | Exception:
        try:
            return self._run([feature])[0]
        except Exception as error:  # each architecture fails in its own way, for example on a text that is too short
            return error

    def _check_repeatable(self) -> None:
        lengths = [len(feature) for feature in self.features]
        # BigBird switches to full attention for good after a short text.
        switches = getattr(self._handler.model.config, "num_random_blocks", None)
        for place in {lengths.index(max(lengths)) if switches else 0, len(lengths) - 1}:
            found = self._distance(place, self._run([self.features[place]])[0])
            if not found <= self.tolerance:
                raise LoadError(
                    f"the model answers the same text alone differently the second time (by {found:.1e}): random "
                    "numbers or earlier texts take part in its answers; package a model whose answers are repeatable"
                )

    def _run(self, features: Sequence[Tokens]) -> list[list[torch.Tensor]]:
        """Return for each feature the floating-point tensors of its answer, then its states."""
        with torch.inference_mode(), _captured_states(self._handler.model) as captured:
            outputs = to_cpu(self._answers(self._handler.collate(features)))
            rows = split(outputs, len(features), stage="inference", what="outputs")
        answers = [_floats(row) for row in rows]
        states = captured[0] if len(captured) == 1 else None
        if states is not None and len(states) == len(features):
            # Beyond the length of the text there are states of padding.
            for answer, own, feature in zip(answers, to_cpu(states.float()), features, strict=True):
                answer.append(own[: len(feature)])
        return answers

    def _model_outputs(self, batch: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """Return what the model gives for each row, for an own handler that takes other items than texts."""
        outputs = self._handler.model(**to_device(batch, self._handler.device))
        rows = len(next(iter(batch.values())))
        found = {name: value for name, value in outputs.items() if isinstance(value, torch.Tensor)}
        return {name: value for name, value in found.items() if value.dim() and len(value) == rows}

    def _distance(self, place: int, answer: Sequence[torch.Tensor]) -> float:
        # Grouped passes capture no states, so the answers alone may have one tensor more.
        pairs = zip(self._alone[place], answer, self._scales, strict=False)
        return max((_distance(one, other, scale) for one, other, scale in pairs), default=0.0)


def _probes(handler: Provable) -> list[Tokens]:
    """Return the features to compare: those of the texts, and the same with random tokens."""
    texts = [*TEXTS, marked_text(handler), long_text(handler)]
    features = [feature for text in texts for feature in features_of(handler, text)[:2]]
    rng = np.random.default_rng(0)
    return features + [random_copy(handler, feature, rng) for feature in features[1:6]]


def _plain_probes(handler: Provable) -> list[Tokens]:
    """Return the tokens of the texts as the tokenizer makes them."""
    found = handler.encode([*TEXTS, long_text(handler)])
    return [tokens for tokens in found if 0 < len(tokens) <= handler.token_limit()]


def marked_text(handler: Provable) -> str:
    """Return a text with the tokenizer's special tokens in it."""
    marks = [str(token) for name in SPECIAL if (token := getattr(handler.tokenizer, name, None))]
    return f"{marks[0] if marks else ''} so {' '.join(marks)} it goes"


def features_of(handler: Provable, text: str) -> list[Tokens]:
    """Return the features that a request with this text becomes; none if the task refuses it."""
    try:
        items = handler.decode_request(Request.of({"inputs": handler.example(text)}))
        [found] = handler.preprocess(items)
    except Exception:  # a text that the task refuses, or an own handler that takes other items
        return []
    return [one for one in (found if isinstance(found, list) else [found]) if isinstance(one, Tokens) and len(one)]


def random_copy(handler: Provable, feature: Tokens, rng: np.random.Generator) -> Tokens:
    """Return the feature with random tokens in place of all but the special ones."""
    special = handler.tokenizer.all_special_ids
    ids = rng.integers(0, getattr(handler.model.config, "vocab_size", None) or len(handler.tokenizer), len(feature.ids))
    kept = np.isin(feature.ids, special) | np.isin(ids, special)
    return replace(feature, ids=np.where(kept, feature.ids, ids))


def long_text(handler: Provable, *, most: int = MAX_LENGTH) -> str:
    """Return a text longer than the windows of the model's attention, and as long as the proof can afford.

    Args:
        handler: the handler.
        most: the most tokens.
    """
    config, weights = handler.model.config, sum(parameter.numel() for parameter in handler.model.parameters())
    widths = [getattr(config, name, None) for name in WINDOWS]
    flat = [width for given in widths for width in (given if isinstance(given, list) else [given])]
    window = max((width for width in flat if isinstance(width, int)), default=0)
    blocks = 5 + 2 * (getattr(config, "num_random_blocks", None) or 0) if hasattr(config, "block_size") else 2
    wanted = max(64, blocks * window + 7, min(512, WORK // max(1, weights)))
    words = min(wanted, MAX_LENGTH, most, handler.token_limit()) - 8
    tokens = len(handler.tokenizer("rain " * 8)["input_ids"]) - 2
    count: int = max(2, 8 * words // max(1, tokens))
    return "rain " * count


def number_format(handler: Provable) -> str:
    """Return the number format that the model computes in, a key of ``TOLERANCES``."""
    asked = handler.settings.dtype
    if asked != "auto" and not handler.engine.packs:  # PyTorch itself is proven before its weights are converted
        return asked
    kinds = {parameter.dtype for parameter in handler.model.parameters()}
    return next((name for name in ("bfloat16", "float16") if getattr(torch, name) in kinds), "float32")


@contextmanager
def _captured_states(model: Any) -> Iterator[list[torch.Tensor]]:
    """Collect the token states (n, longest, width) that each call of the encoder returns."""
    captured: list[torch.Tensor] = []

    def keep(_: Any, __: Any, output: Any) -> None:
        states = getattr(output, "last_hidden_state", None)
        if isinstance(states, torch.Tensor) and states.dim() == 3:
            captured.append(states)

    encoder = getattr(model, "base_model", None)
    if not isinstance(encoder, torch.nn.Module):
        yield captured
        return
    hook = encoder.register_forward_hook(keep)
    try:
        yield captured
    finally:
        hook.remove()


def _floats(row: Any) -> list[torch.Tensor]:
    """Return the floating-point tensors of an answer; positions and ids may differ where scores are tied."""
    if isinstance(row, Mapping):
        return [tensor for value in row.values() for tensor in _floats(value)]
    if isinstance(row, (list, tuple)):
        return [tensor for value in row for tensor in _floats(value)]
    tensor = torch.as_tensor(row)
    return [torch.nan_to_num(tensor.float())] if tensor.is_floating_point() else []


def _scales(answers: Sequence[Sequence[torch.Tensor]]) -> list[float]:
    """Return for each tensor of an answer its usual size, so that an answer near zero is not held to its own."""
    count = min(map(len, answers))
    return [
        math.fsum(float(_norms(answer[index]).mean()) for answer in answers) / len(answers) for index in range(count)
    ]


def _norms(tensor: torch.Tensor) -> torch.Tensor:
    norms: torch.Tensor = torch.linalg.vector_norm(tensor.double().reshape(tensor.shape or (1,)), dim=-1)
    return norms


def _distance(one: torch.Tensor, other: torch.Tensor, scale: float) -> float:
    """Return the largest difference of a vector in both, relative to ``scale``; padding beyond either is ignored."""
    if one.dim() != other.dim():
        return math.inf
    common = tuple(slice(min(sizes)) for sizes in zip(one.shape, other.shape, strict=True))
    apart = _norms(one[common].double() - other[common].double())
    return float(apart.max()) / max(scale, 1e-12) if apart.numel() else 0.0
