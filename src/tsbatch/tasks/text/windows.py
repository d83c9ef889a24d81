"""Texts longer than the model, as overlapping windows that know where in the text their tokens are.

::

    texts ─ tokenizer ─ whole ─ those that are too long ─ tokenizer ─ windows
            one call                                      one call for each way of cutting

The windows of all items share forward passes, whatever each request asked for.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import numpy as np

from tsbatch.errors import LoadError, PayloadTooLarge, RequestError, Unprocessable
from tsbatch.tasks.text.handler import TextHandler
from tsbatch.tasks.text.token_features import Tokens

MAX_WINDOWS = 1000
"""Windows of one item: a limit's worth of Chinese characters in windows of 384 tokens makes half as many."""


@dataclass(frozen=True, slots=True, eq=False)
class Window(Tokens):
    """The tokens of one window.

    Attributes:
        encoding: the tokenizer's record of them (``tokenizers.Encoding``): characters, words, special tokens.
    """

    encoding: Any = None


class Cut(NamedTuple):
    """How a text that is too long becomes windows.

    Attributes:
        max_length: tokens of a window, special ones included.
        stride: tokens that a window shares with the one before; None: the first window alone.
    """

    max_length: int
    stride: int | None


class WindowHandler(TextHandler):
    """Base of the tasks that answer with places in the text."""

    takes_types: ClassVar[bool] = True

    def load_tokenizer(self) -> Any:
        """The tokenizer of the model folder, one that knows which characters a token stands for.

        Raises:
            LoadError: it does not; or as for every text task.
        """
        tokenizer = super().load_tokenizer()
        if not tokenizer.is_fast:
            raise LoadError(
                f"the tokenizer, a {type(tokenizer).__name__}, does not know which characters a token stands for, and "
                f"{self.task} needs that; save a fast tokenizer (tokenizer.json) into the model folder"
            )
        return tokenizer

    def windows(
        self, texts: Sequence[str], pairs: Sequence[str] | None, cuts: Sequence[Cut]
    ) -> list[list[Window] | RequestError]:
        """The windows of each text, or pair of texts: one where it fits, several where it does not.

        Args:
            texts: the texts, or the first of each pair, which every window has in full.
            pairs: the second of each pair, which is cut.
            cuts: for each text or pair how to cut it.

        Returns:
            In the place of one that cannot be cut as asked, the error for its request.
        """
        found: list[list[Window] | RequestError] = [[window] for window, _ in self._encode(texts, pairs)]
        alike: dict[Cut, list[int]] = defaultdict(list)
        for place, (windows, cut) in enumerate(zip(found, cuts, strict=True)):
            assert isinstance(windows, list)
            if len(windows[0]) > cut.max_length:
                error = _unfit(windows[0], cut, 0 if pairs is None else 1)
                if error is None:
                    alike[cut].append(place)
                    found[place] = []
                else:
                    found[place] = error
        for cut, places in alike.items():
            chosen = ([texts[place] for place in places], pairs and [pairs[place] for place in places])
            for window, source in self._encode(*chosen, cut):
                windows = found[places[source]]
                assert isinstance(windows, list)
                windows.append(window)
        return found

    def _encode(
        self, texts: Sequence[str], pairs: Sequence[str] | None, cut: Cut | None = None
    ) -> list[tuple[Window, int]]:
        """Windows in order, each with the place of its text, in one call of the tokenizer."""
        options: dict[str, Any] = {}
        if cut is not None:
            options = {
                "truncation": "only_first" if pairs is None else "only_second",
                "max_length": cut.max_length,
                "stride": cut.stride or 0,
                "return_overflowing_tokens": cut.stride is not None,
            }
        encoded = self.tokenizer(
            list(texts),
            None if pairs is None else list(pairs),
            return_attention_mask=False,
            return_token_type_ids=False,
            verbose=False,
            **options,
        )
        sources = encoded.get("overflow_to_sample_mapping") or range(len(encoded.encodings))
        typed = "token_type_ids" in self.tokenizer.model_input_names
        return [(_window(encoding, typed), source) for encoding, source in zip(encoded.encodings, sources, strict=True)]


def _window(encoding: Any, typed: bool) -> Window:
    types = np.asarray(encoding.type_ids, dtype=np.int64) if typed else None
    return Window(np.asarray(encoding.ids, dtype=np.int64), types, encoding)


def _unfit(whole: Window, cut: Cut, text: int) -> RequestError | None:
    """Why a text that is too long cannot be cut so; the tokenizer would panic, or make windows without an end."""
    tokens = whole.encoding.sequence_ids.count(text)
    room = cut.max_length - (len(whole) - tokens)
    stride = cut.stride or 0
    if room <= stride:
        beside = f"{len(whole) - tokens} tokens are special ones" + (" or the question's" if text else "")
        return Unprocessable(
            f"windows of {cut.max_length} tokens that share {stride} cannot be cut: {beside}",
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
