"""fill-mask: the words that a masked language model predicts for the mask.

Input: a text with the model's mask token (``[MASK]``, ``<mask>``), or a list of texts. Parameters: ``top_k``,
``targets``, ``tokenizer_kwargs``. Output for each text, best first, as in transformers' pipeline::

    [{"score": 0.7, "token": 6060, "token_str": "cat", "sequence": "the cat sat"}, …]

For a text with several masks a list of such lists, one a mask; each mask is filled by itself and the others stay. A
text without a mask, or too long for the model, is a 422; ``{"tokenizer_kwargs": {"truncation": true}}`` cuts long ones.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Annotated, Any, ClassVar

import numpy as np
import torch
from pydantic import Field

from tsbatch.errors import LoadError, Unprocessable
from tsbatch.protocol.request import Item
from tsbatch.settings import Section
from tsbatch.tasks.shared.schemas import INTEGER, NUMBER, STRING, array_of, object_of
from tsbatch.tasks.text.handler import EXAMPLES, TextHandler, length_error
from tsbatch.tasks.text.token_features import Ids, Tokens
from tsbatch.worker.resources import to_device

MAX_ANSWERS = 1000
"""Filled texts in the answer of one item: masks times ``top_k``."""
MAX_TARGETS = 1000
CELLS = 64_000_000
"""Scores that are computed at once, of all words for each mask; they take 256 MB, and softmax as much again."""

TOLERANCE = 1e-4
"""The largest difference of a logit, relative to the largest logit, that counts as equal."""
Positions = tuple[torch.Tensor, torch.Tensor]
"""Row and token of each wanted position, two tensors of shape (positions,)."""

Target = Annotated[str, Field(max_length=200)]


class TokenizerOptions(Section):
    """Tokenizer options of a request.

    Attributes:
        truncation: cut a text that is too long for the model; masks after the cut get no answer.
    """

    truncation: bool = False


class FillMaskParameters(Section):
    """Parameters of a request.

    Attributes:
        top_k: the number of words for each mask.
        targets: choose among these words alone, up to 1000; of a word with several tokens the first token.
        tokenizer_kwargs: see :class:`TokenizerOptions`.
    """

    top_k: int = Field(default=5, ge=1, le=MAX_ANSWERS)
    targets: Target | Annotated[list[Target], Field(max_length=MAX_TARGETS)] | None = None
    tokenizer_kwargs: TokenizerOptions = TokenizerOptions()


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class MaskedText(Tokens):
    """A text with masks.

    Attributes:
        masks: the positions of its masks, shape (masks,).
        targets: token ids to choose among, shape (targets,); None for the whole vocabulary.
        top_k: the number of words for each mask.
    """

    masks: Ids
    targets: Ids | None
    top_k: int


class MaskHead:
    """Computes the logits of selected tokens alone with a masked language model, which would compute those of all.

    The last layer makes a row of the vocabulary's size for each token: with XLM-RoBERTa's 250,000 words that is three
    times the work of the whole encoder, and a megabyte a token. If it is one layer that the model calls, as
    ``get_output_embeddings`` returns it, a hook removes the other rows from that layer's input.

    Attributes:
        sparse: the last layer computes those positions alone; only after :meth:`prove`.
    """

    def __init__(self, model: Any) -> None:
        self.model = model
        self.sparse = False
        self._wanted: Positions | None = None

    def prove(self, batch: Mapping[str, torch.Tensor]) -> None:
        """Turn :attr:`sparse` on if the model gives the same logits with it.

        Args:
            batch: an example input of the model.
        """
        layer = self.model.get_output_embeddings()
        if not isinstance(layer, torch.nn.Module):
            return
        hook = layer.register_forward_pre_hook(self._pick)
        rows, tokens = batch["attention_mask"].nonzero(as_tuple=True)
        wanted = (rows[::2], tokens[::2])
        with torch.inference_mode():
            whole = self.logits(batch, wanted)
            self.sparse = True
            try:
                some = self.logits(batch, wanted)
            except Exception:  # an architecture that needs all rows after its last layer may raise anything
                some = whole[:0]
        tolerance = max(TOLERANCE, 4 * torch.finfo(whole.dtype).eps)  # half precision rounds more than that
        self.sparse = some.shape == whole.shape and float((some - whole).abs().max()) <= tolerance * float(
            whole.abs().max()
        )
        if not self.sparse:
            hook.remove()

    def logits(self, inputs: Mapping[str, torch.Tensor], wanted: Positions) -> torch.Tensor:
        """The logits of the wanted positions, shape (positions, vocabulary).

        Args:
            inputs: the model's inputs, token ids (n, longest) and so on.
            wanted: the positions.
        """
        if not self.sparse:
            logits: torch.Tensor = self.model(**inputs).logits[wanted]
            return logits
        self._wanted = wanted
        try:
            picked: torch.Tensor = self.model(**inputs).logits
        finally:
            self._wanted = None
        return picked

    def _pick(self, layer: torch.nn.Module, arguments: tuple[Any, ...]) -> tuple[Any, ...] | None:
        del layer  # there is only one
        return None if self._wanted is None else (arguments[0][self._wanted], *arguments[1:])


class FillMaskHandler(TextHandler):
    """Fills masks. See the module for input, output and parameters."""

    task: ClassVar[str] = "fill-mask"
    output_schema: ClassVar[Any] = array_of(
        object_of({"score": NUMBER, "token": INTEGER, "token_str": STRING, "sequence": STRING}),
        description="for a text with several masks a list of these, one a mask",
    )
    auto_class: ClassVar[str] = "AutoModelForMaskedLM"
    takes_types: ClassVar[bool] = True
    parameters_class: ClassVar[Any] = FillMaskParameters
    max_length: int

    def load_tokenizer(self) -> Any:
        """Load the tokenizer of the model folder.

        Raises:
            LoadError: it has no mask token; or as for every text task.
        """
        tokenizer = super().load_tokenizer()
        if tokenizer.mask_token_id is None:
            raise LoadError("the tokenizer has no mask token, and fill-mask needs one; is it a masked language model?")
        return tokenizer

    def prepare(self) -> None:
        """Read the vocabulary, for targets, and determine the longest input."""
        self.max_length = self.token_limit()
        self._vocabulary: dict[str, int] = self.tokenizer.get_vocab()
        self.head = MaskHead(self.model)

    def start_engine(self) -> None:
        """Start the engine; with PyTorch itself the head computes the masks alone, if the model allows it."""
        super().start_engine()
        if self.engine.packs:
            self.head.prove(self.engine_batch())

    def examples(self) -> list[str]:
        """Texts of typical lengths, with a mask; none too long for the model."""
        room = max(0, self.max_length - 8)  # characters; a token has one or more
        return [f"{self.tokenizer.mask_token} {text[:room]}" for text in EXAMPLES]

    def example(self, text: str) -> str:
        """Put a mask before the text."""
        return f"{self.tokenizer.mask_token} {text}"

    def preprocess(self, items: Sequence[Item]) -> list[Any]:
        """Tokenize the texts, and find their masks: for each item its masked text, or its error."""
        cut, counts = self.fit([item.value for item in items])
        features = []
        for item, tokens, count in zip(items, cut, counts, strict=True):
            item.state = self._masked(tokens, count, item.parameters)
            features.append(item.state)
        return features

    def _masked(
        self, tokens: Tokens | Unprocessable, count: int, asked: FillMaskParameters
    ) -> MaskedText | Unprocessable:
        if isinstance(tokens, Unprocessable):
            return tokens
        expected = 'a shorter text, or {"parameters": {"tokenizer_kwargs": {"truncation": true}}}'
        error = length_error(count, self.max_length, cut=asked.tokenizer_kwargs.truncation, expected=expected)
        if error is not None:
            return error
        masks = np.flatnonzero(tokens.ids == self.tokenizer.mask_token_id)
        if not len(masks):
            where = f" in its first {self.max_length} tokens" if count > self.max_length else ""
            expected = f"a text with {self.tokenizer.mask_token} in place of a word"
            return Unprocessable(f"the text has no mask{where}", expected=expected)
        if len(masks) * asked.top_k > MAX_ANSWERS:
            message = f"{len(masks)} masks with top_k {asked.top_k} make more than {MAX_ANSWERS:,} filled texts"
            return Unprocessable(message, expected="fewer masks, or a smaller top_k")
        targets = None if asked.targets is None else self._target_ids(asked.targets)
        if targets is not None and not len(targets):
            return Unprocessable("parameters.targets: the tokenizer knows none of them", expected="at least one word")
        return MaskedText(tokens.ids, tokens.types, masks=masks, targets=targets, top_k=asked.top_k)

    def _target_ids(self, targets: str | Sequence[str]) -> Ids:
        words = [targets] if isinstance(targets, str) else targets
        known = {self._vocabulary[word] for word in words if word in self._vocabulary}
        others = [word for word in words if word not in self._vocabulary]
        split = self.encode(others, add_special_tokens=False) if others else []
        return np.array(sorted(known | {int(tokens.ids[0]) for tokens in split if len(tokens)}), dtype=np.int64)

    def collate(self, features: Sequence[Any]) -> dict[str, Any]:
        """The model's inputs, the positions of the masks, and the targets and number of words for each."""
        counts = [len(feature.masks) for feature in features]
        targets = [() if feature.targets is None else feature.targets for feature in features]
        table = np.full((len(features), max(map(len, targets))), -1, dtype=np.int64)
        for row, ids in zip(table, targets, strict=True):
            row[: len(ids)] = ids
        return {
            "inputs": super().collate(features),
            "rows": torch.from_numpy(np.repeat(np.arange(len(features)), counts)),
            "positions": torch.from_numpy(np.concatenate([feature.masks for feature in features])),
            "counts": counts,
            "targets": torch.from_numpy(table),
            "top_k": max(feature.top_k for feature in features),
        }

    def inference(self, tensors: Mapping[str, Any]) -> list[tuple[torch.Tensor, torch.Tensor]]:
        """Find the likeliest words of each text: scores and token ids, each (masks, words)."""
        moved = to_device(tensors, self.device)
        words = []
        for texts, masks in _portions(moved["counts"], CELLS // self.model.config.vocab_size):
            inputs = {name: tensor[texts] for name, tensor in moved["inputs"].items()}
            rows, counts = moved["rows"][masks], moved["counts"][texts]
            logits = self.head.logits(inputs, (rows - texts.start, moved["positions"][masks]))
            probabilities = torch.softmax(logits.float(), dim=-1)
            words += _likeliest(probabilities, counts, moved["targets"][rows], moved["top_k"])
        return words

    def postprocess(self, outputs: Sequence[Any], items: Sequence[Item]) -> list[Any]:
        """Fill the masks with their likeliest words, and decode all texts at once."""
        chosen = [_chosen(output, item.state.top_k) for output, item in zip(outputs, items, strict=True)]
        # In a text with several masks the others stay, and they are special tokens.
        rows: dict[bool, list[list[int]]] = {True: [], False: []}
        for item, masks in zip(items, chosen, strict=True):
            rows[len(masks) == 1].extend(self._filled(item.state, masks))
        texts = {one: iter(self.tokenizer.batch_decode(ids, skip_special_tokens=one)) for one, ids in rows.items()}
        tokens = sorted({token for masks in chosen for mask in masks for _, token in mask})
        strings = dict(zip(tokens, self.tokenizer.batch_decode([[token] for token in tokens]), strict=True))
        answers: list[Any] = []
        for masks in chosen:
            filled = [
                [
                    {
                        "score": score,
                        "token": token,
                        "token_str": strings[token],
                        "sequence": next(texts[len(masks) == 1]),
                    }
                    for score, token in mask
                ]
                for mask in masks
            ]
            answers.append(filled[0] if len(filled) == 1 else filled)
        return answers

    def _filled(self, text: MaskedText, masks: Sequence[Sequence[tuple[float, int]]]) -> Iterator[list[int]]:
        """The ids of the text for each word of each mask, with the word in place of the mask and without padding."""
        for position, mask in zip(text.masks, masks, strict=True):
            for _, token in mask:
                ids = text.ids.copy()
                ids[position] = token
                yield ids[ids != self.tokenizer.pad_token_id].tolist()


def _portions(counts: Sequence[int], limit: int) -> Iterator[tuple[slice, slice]]:
    """Slices of the texts, and of their masks, with at most ``limit`` masks, or a single text."""
    text = mask = 0
    ends = list(accumulate(counts))
    for index, end in enumerate(ends, 1):
        if index == len(ends) or ends[index] - mask > limit:
            yield slice(text, index), slice(mask, end)
            text, mask = index, end


def _likeliest(
    probabilities: torch.Tensor, counts: list[int], targets: torch.Tensor, top_k: int
) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """The best words of each text, among its targets if it has any, by probabilities (masks, vocabulary)."""
    words = _split(probabilities.topk(min(top_k, probabilities.shape[1])), counts)
    if targets.shape[1] == 0:
        return words
    scores = probabilities.gather(1, targets.clamp(min=0)).masked_fill(targets < 0, -1)  # -1 pads the targets
    ordered, order = scores.sort(dim=1, descending=True)
    limited = _split((ordered, targets.gather(1, order)), counts)
    return [own if own[1][0, 0] >= 0 else free for own, free in zip(limited, words, strict=True)]


def _split(words: tuple[torch.Tensor, torch.Tensor], counts: list[int]) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Scores and token ids (masks, words) by text."""
    scores, tokens = (torch.split(tensor.cpu(), counts) for tensor in words)
    return list(zip(scores, tokens, strict=True))


def _chosen(words: tuple[torch.Tensor, torch.Tensor], top_k: int) -> list[list[tuple[float, int]]]:
    """For each mask of a text its ``top_k`` words, each with its score."""
    scores, tokens = (tensor[:, :top_k].tolist() for tensor in words)
    return [
        [(score, token) for score, token in zip(*mask, strict=True) if token >= 0]
        for mask in zip(scores, tokens, strict=True)
    ]
