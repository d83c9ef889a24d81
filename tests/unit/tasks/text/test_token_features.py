"""Padding of tokens."""

from __future__ import annotations

import numpy as np

from tsbatch.tasks.text.token_features import Tokens, pad


def test_ids_types_and_mask_are_padded_on_the_right():
    padded = pad(
        [Tokens(np.array([5, 6, 7]), np.array([0, 1, 1])), Tokens(np.array([8]), np.array([0]))],
        padding=9,
        type_padding=3,
    )
    assert {name: tensor.tolist() for name, tensor in padded.items()} == {
        "input_ids": [[5, 6, 7], [8, 9, 9]],
        "attention_mask": [[1, 1, 1], [1, 0, 0]],
        "token_type_ids": [[0, 1, 1], [0, 3, 3]],
    }


def test_without_types_there_are_none():
    assert pad([Tokens(np.array([5, 6])), Tokens(np.array([8]))]).keys() == {"input_ids", "attention_mask"}


def test_on_the_left_for_what_goes_on_after_the_last_token():
    padded = pad([Tokens(np.array([5, 6, 7])), Tokens(np.array([8]))], padding=9, left=True)
    assert {name: tensor.tolist() for name, tensor in padded.items()} == {
        "input_ids": [[5, 6, 7], [9, 9, 8]],
        "attention_mask": [[1, 1, 1], [0, 0, 1]],
    }
