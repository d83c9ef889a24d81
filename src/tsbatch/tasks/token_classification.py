"""token-classification: names, places, parts of speech in a text, with their positions.

Input: a text, or a list of texts. Parameters: ``aggregation_strategy``, ``ignore_labels``, ``stride``. Output for each
text, as in transformers' pipeline::

    [{"entity": "B-PER", "score": 0.99, "index": 1, "word": "ada", "start": 0, "end": 3}, …]      none
    [{"entity_group": "PER", "score": 0.99, "word": "ada lovelace", "start": 0, "end": 12}, …]     any other strategy

A text longer than the model's limit is cut; with ``stride`` it is read to its end in overlapping windows. Needs a fast
tokenizer. Texts that are already split into words are refused.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import torch
from pydantic import Field

from tsbatch.errors import SettingsError, Unprocessable
from tsbatch.protocol.request import Item
from tsbatch.settings import Section
from tsbatch.tasks.shared.schemas import INTEGER, NUMBER, STRING, array_of, object_of
from tsbatch.tasks.shared.task_handler import with_defaults
from tsbatch.tasks.text.aggregation import Strategy, find_entities, merge_windows, read_tokens
from tsbatch.tasks.text.windows import Cut, Window, WindowHandler
from tsbatch.worker.resources import to_device

OVERLAP = "windows of a text overlap, and with aggregation_strategy none their tokens cannot be told apart"


class TokenClassificationOptions(Section):
    """The section ``handler:`` of model-config.yaml: defaults for the parameters of a request."""

    aggregation_strategy: Strategy = "none"
    ignore_labels: list[str] = Field(default=["O"], description="labels to leave out of the answer")
    stride: int | None = Field(default=None, ge=0, description="tokens that windows of a long text share")


class TokenClassificationParameters(Section):
    """Parameters of a request; by default those of the archive's model-config.yaml.

    Attributes:
        aggregation_strategy: ``none``: an entry for each token. ``simple``: neighbours of one class together.
            ``first``, ``average``, ``max``: the same, with one label a word: that of its first token, of the mean of
            its tokens' scores, or of its token with the highest score.
        ignore_labels: labels to leave out of the answer.
        stride: read a long text to its end, in windows that share this many tokens; not with the strategy none.
    """

    aggregation_strategy: Strategy | None = None
    ignore_labels: list[str] | None = Field(default=None, max_length=1000)
    stride: int | None = Field(default=None, ge=0)


class TokenClassificationHandler(WindowHandler):
    """Labels tokens. See the module for input, output and parameters."""

    task: ClassVar[str] = "token-classification"
    output_schema: ClassVar[Any] = array_of(
        object_of(
            {"score": NUMBER, "word": STRING, "start": INTEGER, "end": INTEGER},
            {"entity": STRING, "entity_group": STRING, "index": INTEGER},
        )
    )
    parameters_class: ClassVar[Any] = TokenClassificationParameters
    settings_class: ClassVar[Any] = TokenClassificationOptions
    auto_class: ClassVar[str] = "AutoModelForTokenClassification"
    max_length: int

    def prepare(self) -> None:
        """Read the names of the classes, and find out whether the tokenizer marks tokens inside a word."""
        options: TokenClassificationOptions = self.options
        if options.stride is not None and options.aggregation_strategy == "none":
            raise SettingsError(f"model-config.yaml: handler.stride: {OVERLAP}; set handler.aggregation_strategy")
        self.names = self.read_class_names()
        self.max_length = self.token_limit()
        # WordPiece has a prefix for tokens inside a word; BPE and Unigram have none, or an empty one.
        self._marked = bool(getattr(self.tokenizer.backend_tokenizer.model, "continuing_subword_prefix", None))

    def check_item(self, item: Item) -> None:
        """Complete the item's parameters.

        Raises:
            Unprocessable: they contradict each other.
        """
        asked: TokenClassificationParameters = item.parameters
        parameters = with_defaults(asked, self.options)
        if parameters.stride is not None and parameters.aggregation_strategy == "none":
            if asked.stride is not None or asked.aggregation_strategy is None:
                expected = "aggregation_strategy simple, first, average or max"
                raise Unprocessable(f"parameters.stride: {OVERLAP}", expected=expected)
            parameters = parameters.model_copy(update={"stride": None})
        item.parameters = parameters

    def preprocess(self, items: Sequence[Item]) -> list[Any]:
        """Divide texts into windows: for each item a list, which is empty for a text without a token."""
        cuts = [Cut(self.max_length, item.parameters.stride) for item in items]
        features: list[Any] = self.windows([item.value for item in items], None, cuts)
        for index, item in enumerate(items):
            if isinstance(features[index], list):
                item.state = features[index] = [window for window in features[index] if len(window)]
        return features

    def inference(self, tensors: Mapping[str, torch.Tensor]) -> torch.Tensor:
        """Probabilities (n, longest, classes) of token ids (n, longest)."""
        logits = self.model(**to_device(tensors, self.device)).logits
        return torch.softmax(logits.float(), dim=-1)

    def postprocess(self, outputs: Sequence[Sequence[torch.Tensor]], items: Sequence[Item]) -> list[Any]:
        """Combine the probabilities of each window's tokens into the entities of each text."""
        windows: list[Window] = [window for item in items for window in item.state]
        owners = [item for item in items for _ in item.state]
        tokens = [
            read_tokens(owner.value, window.encoding, unknown=self.tokenizer.unk_token_id, marked=self._marked)
            for window, owner in zip(windows, owners, strict=True)
        ]
        rows = [row for rows in outputs for row in rows]
        scores = torch.cat(
            [torch.empty(0, len(self.names))]
            + [row[[token.position for token in found]] for row, found in zip(rows, tokens, strict=True)]
        )
        strategies = [owner.parameters.aggregation_strategy for owner in owners]
        found = iter(
            find_entities(tokens, scores.numpy(), strategies, self.names, self.tokenizer.convert_tokens_to_string)
        )
        return [self._answer([next(found) for _ in item.state], item.parameters) for item in items]

    def _answer(self, windows: Sequence[Sequence[Any]], parameters: TokenClassificationParameters) -> list[Any]:
        ignored = frozenset(parameters.ignore_labels or ())
        key = "entity" if parameters.aggregation_strategy == "none" else "entity_group"
        entities = [entity for window in windows for entity in window if entity[key] not in ignored]
        return merge_windows(entities) if len(windows) > 1 else entities
