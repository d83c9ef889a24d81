"""token-classification: names, places, parts of speech in a text, with their characters.

Input: a text, or a list of texts. Parameters: ``aggregation_strategy``, ``ignore_labels``, ``stride``. Output for each
text, as transformers' pipeline gives it::

    [{"entity": "B-PER", "score": 0.99, "index": 1, "word": "ada", "start": 0, "end": 3}, …]      none
    [{"entity_group": "PER", "score": 0.99, "word": "ada lovelace", "start": 0, "end": 12}, …]     any other strategy

A text longer than the model is cut; with ``stride`` it is read to its end in overlapping windows. Needs a fast
tokenizer. Texts that are split into words already are not taken.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import torch
from pydantic import Field

from tsbatch.errors import SettingsError, Unprocessable
from tsbatch.protocol.request import Item, Request
from tsbatch.settings import Section
from tsbatch.tasks.shared.class_names import class_names
from tsbatch.tasks.shared.task_handler import filled
from tsbatch.tasks.text.aggregation import Strategy, find_entities, merge_windows, read_tokens
from tsbatch.tasks.text.windows import Cut, Window, WindowHandler
from tsbatch.worker.resources import to_device

OVERLAP = "windows of a text overlap, and with aggregation_strategy none their tokens cannot be told apart"


class TokenClassificationOptions(Section):
    """The section ``handler:`` of model-config.yaml: what holds where a request says nothing."""

    aggregation_strategy: Strategy = "none"
    ignore_labels: list[str] = Field(default=["O"], description="labels that are left out of the answer")
    stride: int | None = Field(default=None, ge=0, description="tokens that windows of a long text share")


class TokenClassificationParameters(Section):
    """What a request may ask for; what is left out is as in the archive's model-config.yaml.

    Attributes:
        aggregation_strategy: ``none``: an entry a token. ``simple``: neighbours of one class together. ``first``,
            ``average``, ``max``: the same, with one label a word: that of its first token, of the mean of its tokens'
            scores, or of its surest token.
        ignore_labels: labels that are left out of the answer.
        stride: read a long text to its end, in windows that share so many tokens; needs a strategy other than none.
    """

    aggregation_strategy: Strategy | None = None
    ignore_labels: list[str] | None = Field(default=None, max_length=1000)
    stride: int | None = Field(default=None, ge=0)


class TokenClassificationHandler(WindowHandler):
    """Labels tokens. See the module for input, output and parameters."""

    task: ClassVar[str] = "token-classification"
    input_schema: ClassVar[Any] = {"type": "string"}
    output_schema: ClassVar[Any] = {
        "type": "array",
        "items": {
            "type": "object",
            "required": ["score", "word", "start", "end"],
            "properties": {
                "entity": {"type": "string"},
                "entity_group": {"type": "string"},
                "score": {"type": "number"},
                "index": {"type": "integer"},
                "word": {"type": "string"},
                "start": {"type": "integer"},
                "end": {"type": "integer"},
            },
        },
    }
    parameters_class: ClassVar[Any] = TokenClassificationParameters
    settings_class: ClassVar[Any] = TokenClassificationOptions
    names: list[str]
    max_length: int

    def load_model(self) -> Any:
        """The model with its head."""
        from transformers import AutoModelForTokenClassification

        return self.load_pretrained(AutoModelForTokenClassification, complete=True)

    def prepare(self) -> None:
        """Name the classes, and learn how the tokenizer marks what is inside a word."""
        options: TokenClassificationOptions = self.options
        if options.stride is not None and options.aggregation_strategy == "none":
            raise SettingsError(f"model-config.yaml: handler.stride: {OVERLAP}; set handler.aggregation_strategy")
        config = self.model.config
        self.names = class_names(config.num_labels, folder=self.model_dir, aux=self.aux, config=config)
        self.max_length = self.token_limit()
        # WordPiece has a prefix for what is inside a word; BPE and Unigram have none, or an empty one.
        self._marked = bool(getattr(self.tokenizer.backend_tokenizer.model, "continuing_subword_prefix", None))

    def labels(self) -> list[str]:
        """The names of the classes."""
        return self.names

    def decode_request(self, request: Request) -> list[Item]:
        """The items of one request, with parameters that go together."""
        items = super().decode_request(request)
        for item in items:
            item.parameters = self._wish(item.parameters)
        return items

    def preprocess(self, items: Sequence[Item]) -> list[Any]:
        """Texts to windows, a list an item; of a text without a token none."""
        cuts = [Cut(self.max_length, item.parameters.stride) for item in items]
        features: list[Any] = self.windows([item.value for item in items], None, cuts)
        for place, item in enumerate(items):
            if isinstance(features[place], list):
                item.state = features[place] = [window for window in features[place] if len(window)]
        return features

    def inference(self, tensors: Mapping[str, torch.Tensor]) -> torch.Tensor:
        """Token ids (n, longest) to probabilities (n, longest, classes)."""
        logits = self.model(**to_device(tensors, self.device)).logits
        return torch.softmax(logits.float(), dim=-1)

    def postprocess(self, outputs: Sequence[Sequence[torch.Tensor]], items: Sequence[Item]) -> list[Any]:
        """Probabilities of each window's tokens to the entities of each text."""
        windows: list[Window] = [window for item in items for window in item.state]
        owners = [item for item in items for _ in item.state]
        tokens = [
            read_tokens(owner.value, window.encoding, unknown=self.tokenizer.unk_token_id, marked=self._marked)
            for window, owner in zip(windows, owners, strict=True)
        ]
        rows = [row for rows in outputs for row in rows]
        scores = torch.cat(
            [torch.empty(0, len(self.names))]
            + [row[[token.place for token in found]] for row, found in zip(rows, tokens, strict=True)]
        )
        strategies = [owner.parameters.aggregation_strategy for owner in owners]
        found = iter(
            find_entities(tokens, scores.numpy(), strategies, self.names, self.tokenizer.convert_tokens_to_string)
        )
        return [self._answer([next(found) for _ in item.state], item.parameters) for item in items]

    def _answer(self, windows: Sequence[Sequence[Any]], wish: TokenClassificationParameters) -> list[Any]:
        ignored = frozenset(wish.ignore_labels or ())
        key = "entity" if wish.aggregation_strategy == "none" else "entity_group"
        entities = [entity for window in windows for entity in window if entity[key] not in ignored]
        return merge_windows(entities) if len(windows) > 1 else entities

    def _wish(self, asked: TokenClassificationParameters) -> TokenClassificationParameters:
        """The parameters with what they leave out filled in.

        Raises:
            Unprocessable: they do not go together.
        """
        if asked.aggregation_strategy == "none" and asked.stride is None:
            return filled(asked, self.options).model_copy(update={"stride": None})
        wish = filled(asked, self.options)
        if wish.stride is not None and wish.aggregation_strategy == "none":
            raise Unprocessable(
                f"parameters.stride: {OVERLAP}", expected="aggregation_strategy simple, first, average or max"
            )
        return wish
