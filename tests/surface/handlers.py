"""Handlers that show what a worker can emit."""

from __future__ import annotations

import torch

from tsbatch import BatchHandler


class Padding(BatchHandler):
    """Lists of numbers of any length, padded to the longest; the answer is their sum."""

    item_ndim = 1

    def load_model(self):
        return None

    def preprocess(self, items):
        return [torch.tensor(item.value, dtype=torch.float32) for item in items]

    def lengths(self, features):
        return [len(feature) for feature in features]

    def collate(self, features):
        return torch.nn.utils.rnn.pad_sequence(list(features), batch_first=True)

    def inference(self, tensors):
        return tensors.sum(dim=1)
