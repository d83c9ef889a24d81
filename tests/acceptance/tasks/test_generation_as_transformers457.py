"""Summaries and translations are those of the pipelines of transformers 4.57, which 5 has no more."""

from __future__ import annotations

import json
import subprocess

import pytest

from tests.acceptance.older_transformers import ROOT
from tests.generators import load
from tests.varied import answers_in_batches
from tsbatch.tasks.summarization import SummarizationHandler
from tsbatch.tasks.translation import TranslationHandler


@pytest.fixture(scope="module")
def older(transformers_457, tmp_path_factory):
    """The folder with models and pipelines' answers, made by transformers 4.57."""
    root = tmp_path_factory.mktemp("older")
    command = [transformers_457, "-m", "tests.acceptance.older_pipelines", str(root)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=900, check=False)
    assert done.returncode == 0, done.stderr[-4000:]
    return root


def test_answers_are_the_pipelines(older, record_property):
    cases = json.loads((older / "answers.json").read_text(encoding="utf-8"))
    assert len(cases) == 8
    compared = 0
    for case in cases:
        handler_class = SummarizationHandler if case["task"] == "summarization" else TranslationHandler
        handler = load(handler_class, older / case["folder"])
        texts = [next(iter(answer.values())) for answer in case["answers"]]
        assert len(set(texts)) > len(texts) // 2, case["case"]
        assert all(texts), case["case"]
        for place, answer in answers_in_batches(handler, case["requests"]):
            assert answer == case["answers"][place], (case["case"], case["requests"][place])
            compared += 1
    record_property("cases", len(cases))
    record_property("answers_compared", compared)
