"""Pairs of all items in one list, and where each item's are."""

from __future__ import annotations

from tsbatch.tasks.text.sequence_classification import spans


def test_spans_follow_each_other():
    entries = list("abcdef")
    assert [entries[span] for span in spans([2, 0, 1, 3])] == [["a", "b"], [], ["c"], ["d", "e", "f"]]
    assert spans([]) == []
