"""The base class of summarization and translation: an encoder reads the text, and a decoder writes another one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch

from tsbatch.errors import LoadError, Unprocessable
from tsbatch.protocol.request import Item
from tsbatch.tasks.generation.handler import GeneratingHandler, Prompt
from tsbatch.tasks.generation.parameters import GenerationOptions, GenerationParameters, make_plan
from tsbatch.tasks.shared.grouping import map_groups
from tsbatch.tasks.text.handler import length_error
from tsbatch.tasks.text.token_features import Tokens


class EncoderDecoderOptions(GenerationOptions):
    """The section ``handler:`` of model-config.yaml.

    Attributes:
        prefix: put before each text; by default config.json's prefix for the task, as T5's ``summarize: ``.
    """

    prefix: str | None = None


class EncoderDecoderParameters(GenerationParameters):
    """Parameters of a request.

    Attributes:
        truncation: cut a text that is too long; otherwise it gets a 422.
    """

    truncation: bool = False


@dataclass(frozen=True, slots=True)
class Route:
    """How a text is read, and how its answer begins.

    Attributes:
        prefix: put before the text.
        source: the language to set in the tokenizer, or None.
        first: the token that the decoder begins with, or None.
        defaults: the model's generation defaults.
    """

    prefix: str
    source: str | None
    first: int | None
    defaults: Mapping[str, Any]


class EncoderDecoderHandler(GeneratingHandler):
    """Base of the tasks on transformers' AutoModelForSeq2SeqLM."""

    auto_class: ClassVar[str] = "AutoModelForSeq2SeqLM"
    parameters_class: ClassVar[Any] = EncoderDecoderParameters
    settings_class: ClassVar[Any] = EncoderDecoderOptions
    pads_left: ClassVar[bool] = False
    # Text2TextGenerationPipeline of transformers 4.57; 5 has none.
    pipeline_defaults: ClassVar[Any] = {"num_beams": 4}
    answer_key: ClassVar[str]
    """The key of the text in an answer."""

    def prepare(self) -> None:
        """Make sure that the decoder has a token to begin with.

        Raises:
            LoadError: neither generation_config.json nor config.json names one; or a setting is not supported.
        """
        super().prepare()
        if self.neutral.decoder_start_token_id is None:
            self.neutral.decoder_start_token_id = getattr(self.model.config, "decoder_start_token_id", None)
        if self.neutral.decoder_start_token_id is None and self.neutral.bos_token_id is None:
            raise LoadError("generation_config.json: no decoder_start_token_id, the token that each text begins with")
        forced = self.defaults.get("forced_bos_token_id") or hasattr(self.tokenizer, "_build_translation_inputs")
        if forced and self.neutral.begin_suppress_tokens:
            message = "begin_suppress_tokens is not supported together with a forced first token"
            raise LoadError(f"generation_config.json: {message}")

    def route(self, parameters: Any) -> Route:
        """How a text with these parameters is read, and how its answer begins.

        Raises:
            Unprocessable: the model does not know a language.
        """
        del parameters
        return self.route_with(self.defaults)

    def route_with(self, defaults: Mapping[str, Any]) -> Route:
        """The route that these generation defaults describe."""
        prefix = self.options.prefix if self.options.prefix is not None else defaults.get("prefix") or ""
        return Route(prefix, None, defaults.get("forced_bos_token_id"), defaults)

    def check_item(self, item: Item) -> None:
        """Check that the model knows the item's languages."""
        super().check_item(item)
        self.route(item.parameters)

    def example_parameters(self) -> Mapping[str, Any]:
        """The parameters that each request to this model must have, and the cut of long examples."""
        return {"truncation": True}

    def preprocess(self, items: Sequence[Item]) -> list[Any]:
        """Turn texts into prompts: for each item one, or its error. One call of the tokenizer a source language."""
        routes = [self.route(item.parameters) for item in items]
        keys = [(route.source, item.parameters.truncation) for route, item in zip(routes, items, strict=True)]
        return map_groups(list(zip(items, routes, strict=True)), keys, self._tokenize)

    def postprocess(self, outputs: Sequence[torch.Tensor], items: Sequence[Item]) -> list[dict[str, str]]:
        """Decode the new tokens of all texts in one call of the tokenizer."""
        # As in the pipelines: only a decoder's tokenizer decides about this.
        texts = self.texts(outputs, [item.state for item in items], clean_up_tokenization_spaces=False)
        return [{self.answer_key: text} for text in texts]

    def _tokenize(self, group: Sequence[tuple[Item, Route]]) -> list[Prompt | Unprocessable]:
        """The prompts of items with one source language, which are all cut or all not."""
        item, route = group[0]
        if route.source is not None:
            self.tokenizer.src_lang = route.source
        limit = min(self.max_input, self.token_limit()) if item.parameters.truncation else self.max_input
        tokens, counts = self.fit([route.prefix + item.value for item, route in group], max_length=limit)
        return [
            self._prompt(own, count, route, item)
            for own, count, (item, route) in zip(tokens, counts, group, strict=True)
        ]

    def _prompt(self, tokens: Tokens | Unprocessable, count: int, route: Route, item: Item) -> Prompt | Unprocessable:
        expected = 'a shorter text, or {"parameters": {"truncation": true}}'
        error = length_error(count, self.max_input, cut=item.parameters.truncation, expected=expected)
        if error is not None:
            return error
        if isinstance(tokens, Unprocessable):
            return tokens
        cap = self.options.max_new_tokens
        room = cap if self.positions is None else self.positions - 1  # the decoder has a token to start with
        try:
            item.state = make_plan(item.parameters, route.defaults, prompt=1, room=room, cap=cap, first=route.first)
        except Unprocessable as refused:
            return refused
        return Prompt(tokens.ids, plan=item.state)
