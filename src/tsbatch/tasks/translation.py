"""translation: a text in another language, from any encoder-decoder of transformers (Marian, NLLB, mBART, T5 ...).

Input: a text, or a list of texts. Parameters: ``src_lang`` and ``tgt_lang``, those of ``generation/parameters.py``, and
``truncation``. Output for each text, as transformers' pipeline has it::

    {"translation_text": "Guten Morgen."}

Languages are named as the model names them: ``eng_Latn`` (NLLB), ``en`` (M2M100), ``en_XX`` (mBART), and as in the
names of config.json's ``task_specific_params`` where it has prefixes for them (T5's ``translation_en_to_de``). They
may also be set for all requests, as ``handler.src_lang`` and ``handler.tgt_lang``. A model of one pair, as most of
Marian's, takes none. Texts of different languages share forward passes. The rest is as in summarization.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, ClassVar

from tsbatch.errors import SettingsError, Unprocessable
from tsbatch.tasks.generation.encoder_decoder import (
    EncoderDecoderHandler,
    EncoderDecoderOptions,
    EncoderDecoderParameters,
    Route,
)

SHOWN = 12
"""Languages that a message names."""


class TranslationOptions(EncoderDecoderOptions):
    """The section ``handler:`` of model-config.yaml.

    Attributes:
        src_lang: the language of texts whose request does not say.
        tgt_lang: the language to translate into where the request does not say.
    """

    src_lang: str | None = None
    tgt_lang: str | None = None


class TranslationParameters(EncoderDecoderParameters):
    """What a request may ask for.

    Attributes:
        src_lang: the language of the text.
        tgt_lang: the language to translate into.
    """

    src_lang: str | None = None
    tgt_lang: str | None = None


class TranslationHandler(EncoderDecoderHandler):
    """Translates texts. See the module for input, output and parameters."""

    task: ClassVar[str] = "translation"
    answer_key: ClassVar[str] = "translation_text"
    input_schema: ClassVar[Any] = {"type": "string"}
    output_schema: ClassVar[Any] = {
        "type": "object",
        "required": ["translation_text"],
        "properties": {"translation_text": {"type": "string"}},
    }
    parameters_class: ClassVar[Any] = TranslationParameters
    settings_class: ClassVar[Any] = TranslationOptions

    def prepare(self) -> None:
        """Find the languages, and the model's defaults for each pair that config.json names."""
        super().prepare()
        self.codes = self._codes()
        self.pairs = self._pairs()
        try:
            for name in ("src_lang", "tgt_lang"):
                if self.codes and getattr(self.options, name):
                    _known(name, getattr(self.options, name), self.codes)
        except Unprocessable as error:
            raise SettingsError(f"model-config.yaml: handler: {error}; expected {error.expected}") from None

    def route(self, wish: TranslationParameters) -> Route:
        """The languages of a request: for the tokenizer and the decoder's first token, or as T5's prefix.

        Raises:
            Unprocessable: this model needs them, or has not these, or has no choice.
        """
        source = wish.src_lang or self.options.src_lang
        target = wish.tgt_lang or self.options.tgt_lang
        plain = super().route(wish)
        if self.codes:
            first = self.codes[_known("tgt_lang", target, self.codes)]
            return Route(plain.prefix, _known("src_lang", source, self.codes), first, plain.usual)
        if source is None and target is None:
            return plain
        if self.pairs:
            return self.pairs[_known("src_lang and tgt_lang", f"{source} to {target}", self.pairs)]
        raise Unprocessable("this model translates between two languages alone", expected="no src_lang, no tgt_lang")

    def example_parameters(self) -> Mapping[str, Any]:
        """Two of the model's languages."""
        if not self.codes:
            return {}
        codes = sorted(self.codes)
        return {"src_lang": codes[0], "tgt_lang": codes[-1]}

    def describe_handle(self) -> dict[str, Any]:
        """What the task takes and gives, and the languages that this model has."""
        return {**super().describe_handle(), "languages": sorted(self.codes), "pairs": sorted(self.pairs)}

    def _codes(self) -> dict[str, int]:
        """Token ids of the languages that the tokenizer is told; none where it is not told any."""
        # What transformers' translation pipeline looks for too.
        if not hasattr(self.tokenizer, "_build_translation_inputs"):
            return {}
        known = getattr(self.tokenizer, "lang_code_to_id", None)  # M2M100 (its tokens are __en__), mBART-50
        if known:
            return dict(known)
        special = self.tokenizer.all_special_tokens
        codes = [token for token in special if re.fullmatch(r"[a-z]{2,3}_[A-Za-z]+", token)]
        return dict(zip(codes, self.tokenizer.convert_tokens_to_ids(codes), strict=True))

    def _pairs(self) -> dict[str, Route]:
        """The pairs that config.json has a prefix for, as T5's: ``en to de``."""
        known = getattr(self.model.config, "task_specific_params", None) or {}
        pairs = {}
        for name in known:
            if found := re.fullmatch(r"translation_([^_]+)_to_([^_]+)", name):
                usual = {**self.usual, **self.task_defaults(name)}
                prefix = self.options.prefix if self.options.prefix is not None else usual.get("prefix") or ""
                route = Route(prefix, None, usual.get("forced_bos_token_id"), usual)
                pairs[f"{found[1]} to {found[2]}"] = route
        return pairs


def _known(what: str, asked: str | None, among: Mapping[str, Any]) -> str:
    if asked is not None and asked in among:
        return asked
    names = sorted(among)
    more = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
    wrong = "has to be given for this model" if asked is None else f"{asked[:40]!r} is none of this model's"
    raise Unprocessable(f"parameters.{what}: {wrong}", expected=f"one of {', '.join(names[:SHOWN])}{more}")
