"""Folders saved by sentence-transformers' CrossEncoder, against its own ``predict``, one pair at a time."""

from __future__ import annotations

import json
import warnings

import pytest
import torch

from tests.classifiers import ask, load, save_classifier
from tests.tiny import write
from tests.varied import TEXTS
from tsbatch.errors import LoadError
from tsbatch.tasks.reranking import RerankingHandler

pytestmark = pytest.mark.filterwarnings("default")  # sentence-transformers and scikit-learn have their own
with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    import sentence_transformers as library

QUERY, *PASSAGES = TEXTS[:8]


def save(folder, **options):
    save_classifier(folder / "plain", labels=("fits",))
    model = library.CrossEncoder(str(folder / "plain"), device="cpu", **options)
    model.save_pretrained(str(folder / "model"))
    return folder / "model"


def check(folder):
    model = library.CrossEncoder(str(folder), device="cpu")
    wanted = [float(model.predict((QUERY, passage), show_progress_bar=False)) for passage in PASSAGES]
    [(status, answer)] = ask(load(RerankingHandler, folder), [{"query": QUERY, "texts": PASSAGES}])
    assert status == 200
    scores = {entry["index"]: entry["score"] for entry in answer}
    assert [scores[place] for place in range(len(PASSAGES))] == pytest.approx(wanted, abs=1e-4)
    assert [entry["score"] for entry in answer] == sorted(scores.values(), reverse=True)
    return wanted


KINDS = {
    "nothing of its own": {},
    "identity": {"activation_fn": torch.nn.Identity()},
    "tanh": {"activation_fn": torch.nn.Tanh()},
    "a prompt": {"prompts": {"web": "the dog , ", "code": "mat"}, "default_prompt_name": "web"},
    "a shorter length": {"max_length": 12},
}


@pytest.mark.parametrize("kind", KINDS)
def test_scores_are_those_of_predict(tmp_path, kind):
    folder = save(tmp_path, **KINDS[kind])
    plain = library.CrossEncoder(str(tmp_path / "plain"), device="cpu").predict([(QUERY, one) for one in PASSAGES])
    assert (pytest.approx(check(folder), abs=1e-4) == plain.tolist()) == (kind == "nothing of its own")


OLDER = {
    "version 4": {"sentence_transformers": {"activation_fn": "torch.nn.modules.linear.Identity", "version": "4.1.0"}},
    "version 2": {"sbert_ce_default_activation_function": "torch.nn.modules.linear.Identity"},
}


@pytest.mark.parametrize("version", OLDER)
def test_the_activation_of_older_versions(tmp_path, version):
    folder = save_classifier(tmp_path, labels=("fits",))
    write(folder / "config.json", {**json.loads((folder / "config.json").read_text()), **OLDER[version]})
    assert max(map(abs, check(folder))) > 1


MODULE = "sentence_transformers.cross_encoder.modules.logit_score.LogitScore"
REFUSED = {
    "modules.json": (
        [{"type": "sentence_transformers.base.modules.Transformer"}, {"type": MODULE}],
        "not .*LogitScore",
    ),
    "config_sentence_transformers.json": ({"model_type": "CrossEncoder", "temperature": 2}, "temperature: 2"),
    "sentence_bert_config.json": ({"transformer_task": "text-generation"}, "transformer_task: 'text-generation'"),
}


@pytest.mark.parametrize("file", REFUSED)
def test_what_would_change_the_scores_is_refused(tmp_path, file):
    folder = save(tmp_path)
    content, reason = REFUSED[file]
    write(folder / file, content)
    with pytest.raises(LoadError, match=rf"{file}: .*{reason}"):
        load(RerankingHandler, folder)


@pytest.mark.parametrize("path", ["mine.Sharpen", "torch.nn.Swoosh", "torch.nn.PReLU", "torch.nn.Linear"])
def test_an_activation_that_is_none_of_torch_nn(tmp_path, path):
    folder = save_classifier(tmp_path, labels=("fits",))
    config = json.loads((folder / "config.json").read_text())
    write(folder / "config.json", {**config, "sentence_transformers": {"activation_fn": path}})
    with pytest.raises(LoadError, match=f"activation_fn: {path} is no activation"):
        load(RerankingHandler, folder)


@pytest.mark.parametrize(
    "library_file, reason",
    [({"prompts": {}, "default_prompt_name": "q", "model_type": "CrossEncoder"}, "'q' is not one of the prompts")],
)
def test_prompts_that_do_not_exist(tmp_path, library_file, reason):
    folder = save(tmp_path)
    write(folder / "config_sentence_transformers.json", library_file)
    with pytest.raises(LoadError, match=reason):
        load(RerankingHandler, folder)
    (folder / "modules.json").unlink()
    with pytest.raises(LoadError, match=r"no effect without modules\.json"):
        load(RerankingHandler, folder)
