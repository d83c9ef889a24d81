"""What summarization and translation share: an encoder reads the text, and a decoder writes another one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch

from tsbatch.errors import LoadError, Unprocessable
from tsbatch.protocol.request import Item, Request
from tsbatch.tasks.generation.handler import EXAMPLE_PARAMETERS, GeneratingHandler, Prompt
from tsbatch.tasks.generation.parameters import GenerationOptions, GenerationParameters, make_plan
from tsbatch.tasks.text.token_features import Ids


class EncoderDecoderOptions(GenerationOptions):
    """The section ``handler:`` of model-config.yaml.

    Attributes:
        prefix: put before each text; by default what config.json says of the task, as T5's ``summarize: ``.
    """

    prefix: str | None = None


class EncoderDecoderParameters(GenerationParameters):
    """What a request may ask for.

    Attributes:
        truncation: cut a text that is too long; otherwise it gets a 422.
    """

    truncation: bool = False


@dataclass(frozen=True, slots=True)
class Route:
    """What a request's parameters say of how its text is read and begun.

    Attributes:
        prefix: put before the text.
        source: the language to tell the tokenizer, or None.
        first: the token that the decoder begins with, or None.
        usual: the model's defaults for this.
    """

    prefix: str
    source: str | None
    first: int | None
    usual: Mapping[str, Any]


class EncoderDecoderHandler(GeneratingHandler):
    """Base of the tasks on transformers' AutoModelForSeq2SeqLM."""

    parameters_class: ClassVar[Any] = EncoderDecoderParameters
    settings_class: ClassVar[Any] = EncoderDecoderOptions
    pads_left: ClassVar[bool] = False
    # Text2TextGenerationPipeline of transformers 4.57; 5 has none.
    pipeline_defaults: ClassVar[Any] = {"num_beams": 4}
    answer_key: ClassVar[str]
    """The key of the text in an answer."""

    def load_model(self) -> Any:
        """Encoder and decoder."""
        from transformers import AutoModelForSeq2SeqLM

        return self.load_pretrained(AutoModelForSeq2SeqLM, complete=True)

    def prepare(self) -> None:
        """See to it that the decoder knows what to begin with.

        Raises:
            LoadError: neither generation_config.json nor config.json says it.
        """
        super().prepare()
        if self.neutral.decoder_start_token_id is None:
            self.neutral.decoder_start_token_id = getattr(self.model.config, "decoder_start_token_id", None)
        if self.neutral.decoder_start_token_id is None and self.neutral.bos_token_id is None:
            raise LoadError("generation_config.json: no decoder_start_token_id, the token that each text begins with")

    def route(self, wish: Any) -> Route:
        """How a text with these parameters is read and begun.

        Raises:
            Unprocessable: a language that this model has not.
        """
        del wish
        prefix = self.options.prefix if self.options.prefix is not None else self.usual.get("prefix") or ""
        return Route(prefix, None, self.usual.get("forced_bos_token_id"), self.usual)

    def decode_request(self, request: Request) -> list[Item]:
        """The items of one request, with languages that this model has."""
        items = super().decode_request(request)
        for item in items:
            self.route(item.parameters)
        return items

    def examples(self) -> Sequence[Any]:
        """Texts of the lengths that clients send, with few tokens to make."""
        parameters = {**EXAMPLE_PARAMETERS, "truncation": True, **self.example_parameters()}
        return [{"text": text, "parameters": parameters} for text in super().examples()]

    def example_parameters(self) -> Mapping[str, Any]:
        """What a request to this model cannot do without."""
        return {}

    def preprocess(self, items: Sequence[Item]) -> list[Any]:
        """Texts to prompts: one an item, or its error. One call of the tokenizer for each source language."""
        routes = [self.route(item.parameters) for item in items]
        alike: dict[tuple[str | None, bool], list[int]] = {}
        for place, (item, route) in enumerate(zip(items, routes, strict=True)):
            alike.setdefault((route.source, item.parameters.truncation), []).append(place)
        features: list[Any] = [None] * len(items)
        for (source, truncation), places in alike.items():
            if source is not None:
                self.tokenizer.src_lang = source
            longest = min(self.most_input, self.token_limit()) if truncation else self.most_input
            rows, counts = self.tokenize([routes[place].prefix + items[place].value for place in places], longest)
            for place, ids, count in zip(places, rows, counts, strict=True):
                features[place] = self._prompt(ids, count, routes[place], items[place])
        return features

    def postprocess(self, outputs: Sequence[torch.Tensor], items: Sequence[Item]) -> list[dict[str, str]]:
        """New tokens to texts, all of them in one call of the tokenizer."""
        # As the pipelines have it: only the tokenizer of a decoder has a say in it.
        texts = self.texts(outputs, [item.state for item in items], clean_up_tokenization_spaces=False)
        return [{self.answer_key: text} for text in texts]

    def _prompt(self, ids: Ids, count: int, route: Route, item: Item) -> Prompt | Unprocessable:
        if count == 0:
            return Unprocessable("the text has no token", expected="a text with at least one word")
        if count > len(ids) and not item.parameters.truncation:
            message = f"the text has {count} tokens, over the {self.most_input} that this model takes"
            return Unprocessable(message, expected='a shorter text, or {"parameters": {"truncation": true}}')
        cap = self.options.max_new_tokens
        room = cap if self.positions is None else self.positions - 1  # the decoder has a token to start with
        try:
            item.state = make_plan(item.parameters, route.usual, prompt=1, room=room, cap=cap, first=route.first)
        except Unprocessable as error:
            return error
        return Prompt(ids, item.state)
