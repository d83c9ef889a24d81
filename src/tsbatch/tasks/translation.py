"""translation: a text in another language, with any encoder-decoder of transformers (Marian, NLLB, mBART, T5 ...).

Input: a text, or a list of texts. Parameters: ``src_lang`` and ``tgt_lang``, those of ``generation/parameters.py``, and
``truncation``. Output for each text, as in transformers' pipeline::

    {"translation_text": "Guten Morgen."}

Languages are named as the model names them: ``eng_Latn`` (NLLB), ``en`` (M2M100), ``en_XX`` (mBART), and as in the
keys of config.json's ``task_specific_params`` if it has prefixes for them (T5's ``translation_en_to_de``). They may
also be set for all requests, as ``handler.src_lang`` and ``handler.tgt_lang``. A model for one pair, as most Marian
models, takes none. Texts of different languages share forward passes. The rest is as in summarization.
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
from tsbatch.tasks.generation.generation_config import COMMON, REFUSED, check_supported
from tsbatch.tasks.shared.schemas import STRING, object_of
from tsbatch.tasks.shared.task_handler import abbreviate

MAX_NAMES = 12
"""Languages that a message lists."""


class TranslationOptions(EncoderDecoderOptions):
    """The section ``handler:`` of model-config.yaml.

    Attributes:
        src_lang: the language of the texts, unless the request names one.
        tgt_lang: the language to translate into, unless the request names one.
    """

    src_lang: str | None = None
    tgt_lang: str | None = None


class TranslationParameters(EncoderDecoderParameters):
    """Parameters of a request.

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
    output_schema: ClassVar[Any] = object_of({"translation_text": STRING})
    parameters_class: ClassVar[Any] = TranslationParameters
    settings_class: ClassVar[Any] = TranslationOptions

    def prepare(self) -> None:
        """Find the model's languages, and its defaults for each pair that config.json names."""
        super().prepare()
        self.codes = self._codes()
        self.pairs = self._pairs()
        try:
            for name in ("src_lang", "tgt_lang"):
                if self.codes and getattr(self.options, name):
                    _check_known(name, getattr(self.options, name), self.codes)
        except Unprocessable as error:
            raise SettingsError(f"model-config.yaml: handler: {error}; expected {error.expected}") from None

    def route(self, parameters: TranslationParameters) -> Route:
        """The languages of a request: for the tokenizer and the decoder's first token, or as T5's prefix.

        Raises:
            Unprocessable: this model needs them, does not know them, or has only one pair.
        """
        source = parameters.src_lang or self.options.src_lang
        target = parameters.tgt_lang or self.options.tgt_lang
        plain = super().route(parameters)
        if self.codes:
            first = self.codes[_check_known("tgt_lang", target, self.codes)]
            return Route(plain.prefix, _check_known("src_lang", source, self.codes), first, plain.defaults)
        if source is None and target is None:
            return plain
        if self.pairs:
            return self.pairs[_check_known("src_lang and tgt_lang", f"{source} to {target}", self.pairs)]
        raise Unprocessable("this model translates only one language pair", expected="no src_lang, no tgt_lang")

    def example_parameters(self) -> Mapping[str, Any]:
        """Two of the model's languages."""
        if not self.codes:
            return super().example_parameters()
        codes = sorted(self.codes)
        return {**super().example_parameters(), "src_lang": codes[0], "tgt_lang": codes[-1]}

    def describe_handle(self) -> dict[str, Any]:
        """Describe the task's input and output, and this model's languages."""
        return {**super().describe_handle(), "languages": sorted(self.codes), "pairs": sorted(self.pairs)}

    def _codes(self) -> dict[str, int]:
        """Token ids of the languages that the tokenizer takes; empty if it takes none."""
        # transformers' translation pipeline checks for this too.
        if not hasattr(self.tokenizer, "_build_translation_inputs"):
            return {}
        known = getattr(self.tokenizer, "lang_code_to_id", None)  # M2M100 (its tokens are __en__), mBART-50
        if known:
            return dict(known)
        special = self.tokenizer.all_special_tokens
        codes = [token for token in special if re.fullmatch(r"[a-z]{2,3}_[A-Za-z]+", token)]
        return dict(zip(codes, self.tokenizer.convert_tokens_to_ids(codes), strict=True))

    def _pairs(self) -> dict[str, Route]:
        """The pairs for which config.json has a prefix, as T5's: ``en to de``."""
        pairs = {}
        for name, params in self.task_params.items():
            if found := re.fullmatch(r"translation_([^_]+)_to_([^_]+)", name):
                check_supported(params or {}, (*REFUSED, *COMMON), file="config.json: task_specific_params")
                pairs[f"{found[1]} to {found[2]}"] = self.route_with({**self.defaults, **(params or {})})
        return pairs


def _check_known(what: str, asked: str | None, among: Mapping[str, Any]) -> str:
    if asked is not None and asked in among:
        return asked
    problem = "is required for this model" if asked is None else f"this model does not know {asked[:40]!r}"
    raise Unprocessable(f"parameters.{what}: {problem}", expected=f"one of {abbreviate(sorted(among), MAX_NAMES)}")
