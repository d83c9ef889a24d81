"""Divide texts that are too long for the model into overlapping windows with the character offsets of their tokens.

::

    texts ─ tokenizer ─ whole ─ those that are too long ─ tokenizer ─ windows
            one call                                      one call for each way of cutting

The windows of all items share forward passes, whatever each request asks for.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import numpy as np

from tsbatch.errors import LoadError, PayloadTooLarge, RequestError, Unprocessable
from tsbatch.tasks.shared.grouping import group_equal
from tsbatch.tasks.text.handler import TextHandler
from tsbatch.tasks.text.token_features import Tokens

MAX_WINDOWS = 1000
"""Windows of one item. A Chinese text of the maximum length makes half as many windows of 384 tokens."""


@dataclass(frozen=True, slots=True, eq=False)
class Window(Tokens):
    """The tokens of one window.

    Attributes:
        encoding: the tokenizer's result (``tokenizers.Encoding``): characters, words, special tokens.
    """

    encoding: Any = None


class Cut(NamedTuple):
    """How a text that is too long is divided into windows.

    Attributes:
        max_length: tokens of a window, special ones included.
        stride: tokens that a window shares with the previous one; None: use the first window alone.
    """

    max_length: int
    stride: int | None


class WindowHandler(TextHandler):
    """Base of the tasks that answer with positions in the text."""

    takes_types: ClassVar[bool] = True

    def load_tokenizer(self) -> Any:
        """Load the tokenizer of the model folder, which must know the character offsets of its tokens.

        Raises:
            LoadError: it does not know them; or as for every text task.
        """
        tokenizer = super().load_tokenizer()
        if not tokenizer.is_fast:
            raise LoadError(
                f"the tokenizer, a {type(tokenizer).__name__}, does not know the character offsets of its tokens, and "
                f"{self.task} needs that; save a fast tokenizer (tokenizer.json) into the model folder"
            )
        return tokenizer

    def windows(
        self, texts: Sequence[str], pairs: Sequence[str] | None, cuts: Sequence[Cut]
    ) -> list[list[Window] | RequestError]:
        """Divide each text, or pair of texts, into windows: one if it fits, several if it does not.

        Args:
            texts: the texts, or the first of each pair, which every window has in full.
            pairs: the second of each pair, which is cut.
            cuts: for each text or pair how to cut it.

        Returns:
            For each its windows, or the error for a request whose text cannot be cut as it asks.
        """
        found: list[Any] = [[window] for window, _ in self._encode_windows(texts, pairs)]
        long = [index for index, cut in enumerate(cuts) if len(found[index][0]) > cut.max_length]
        for index in long:
            found[index] = _cut_error(found[index][0], cuts[index], 0 if pairs is None else 1) or []
        long = [index for index in long if not isinstance(found[index], RequestError)]
        for members in group_equal([cuts[index] for index in long]):
            indices = [long[member] for member in members]
            chosen = [texts[index] for index in indices], pairs and [pairs[index] for index in indices]
            for window, source in self._encode_windows(*chosen, cuts[indices[0]]):
                found[indices[source]].append(window)
        return found

    def _encode_windows(
        self, texts: Sequence[str], pairs: Sequence[str] | None, cut: Cut | None = None
    ) -> list[tuple[Window, int]]:
        """The windows of all texts in order, each with the index of its text, in one call of the tokenizer."""
        options: dict[str, Any] = {}
        if cut is not None:
            options = {
                "truncation": "only_first" if pairs is None else "only_second",
                "max_length": cut.max_length,
                "stride": cut.stride or 0,
                "return_overflowing_tokens": cut.stride is not None,
            }
        encoded = self._call_tokenizer(texts, pairs, return_token_type_ids=False, **options)
        sources = encoded.get("overflow_to_sample_mapping") or range(len(encoded.encodings))
        typed = self._has_types(True)
        return [(_window(encoding, typed), source) for encoding, source in zip(encoded.encodings, sources, strict=True)]


def _window(encoding: Any, typed: bool) -> Window:
    types = np.asarray(encoding.type_ids, dtype=np.int64) if typed else None
    return Window(np.asarray(encoding.ids, dtype=np.int64), types, encoding)


def _cut_error(whole: Window, cut: Cut, text: int) -> RequestError | None:
    """Why a text that is too long cannot be cut so: the tokenizer would panic, or never stop making windows."""
    tokens = whole.encoding.sequence_ids.count(text)
    room = cut.max_length - (len(whole) - tokens)
    stride = cut.stride or 0
    if room <= stride:
        reason = f"{len(whole) - tokens} tokens are special ones" + (" or the question's" if text else "")
        return Unprocessable(
            f"windows of {cut.max_length} tokens that share {stride} cannot be cut: {reason}",
            expected=f"a stride under {room}" if room > 0 else "longer windows" + (", or a shorter question" * text),
        )
    count = -(-(tokens - stride) // (room - stride))
    if cut.stride is not None and count > MAX_WINDOWS:
        return PayloadTooLarge(
            f"the text makes {count:,} windows of {cut.max_length} tokens that share {stride}, over the limit of "
            f"{MAX_WINDOWS:,}",
            expected="a shorter text, longer windows or a smaller stride",
        )
    return None
