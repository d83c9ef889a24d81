"""The logits of some places alone, where a model lets itself be asked for them."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

from tsbatch.tasks.fill_mask import MaskHead

IDS = torch.arange(12).reshape(3, 4)
BATCH = {"input_ids": IDS, "attention_mask": torch.ones_like(IDS)}
WANTED = (torch.tensor([0, 2, 2]), torch.tensor([1, 0, 3]))


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = torch.nn.Embedding(12, 5)
        self.last = torch.nn.Linear(5, 12)
        self.rows = []

    def get_output_embeddings(self):
        return self.last

    def forward(self, input_ids, attention_mask):
        logits = self.last(self.embedding(input_ids))
        self.rows.append(logits.shape[:-1].numel())
        return SimpleNamespace(logits=logits)


class Untouched(Model):
    """Like MobileBERT: the layer's weights are used, the layer is not called."""

    def forward(self, input_ids, attention_mask):
        states = self.embedding(input_ids)
        return SimpleNamespace(logits=states @ self.last.weight.T + self.last.bias)


class NeedsAll(Model):
    def forward(self, input_ids, attention_mask):
        return SimpleNamespace(logits=self.last(self.embedding(input_ids)).reshape(3, 4, 12))


class Mixing(Model):
    """What it answers for a token depends on the logits of the others."""

    def forward(self, input_ids, attention_mask):
        logits = super().forward(input_ids, attention_mask).logits
        return SimpleNamespace(logits=logits - logits.reshape(-1, 12).mean(0))


class Headless(Model):
    def get_output_embeddings(self):
        return None


@pytest.fixture(autouse=True)
def seed():
    torch.manual_seed(0)


def test_the_last_layer_computes_the_wanted_rows_alone():
    model = Model()
    head = MaskHead(model)
    whole = head.logits(BATCH, WANTED)
    head.prove(BATCH)
    assert head.sparse
    assert torch.allclose(head.logits(BATCH, WANTED), whole, atol=1e-6)
    assert model.rows[-1] == 3
    assert model(**BATCH).logits.shape == (3, 4, 12), "only when asked through the head"


@pytest.mark.parametrize("kind", [Untouched, NeedsAll, Mixing, Headless])
def test_a_model_that_would_answer_otherwise_is_left_alone(kind):
    model = kind()
    head = MaskHead(model)
    whole = head.logits(BATCH, WANTED)
    head.prove(BATCH)
    assert not head.sparse
    assert not model.last._forward_pre_hooks
    assert torch.equal(head.logits(BATCH, WANTED), whole)
