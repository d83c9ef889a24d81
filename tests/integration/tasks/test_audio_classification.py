"""Audio classification: tiny models, against transformers.pipeline on the same folder, sound by sound."""

from __future__ import annotations

import base64
import json

import numpy as np
import pytest

from tests.tiny_audio import fill, save_waveform_model
from tests.varied import answers_in_batches
from tests.varied_sounds import heard, sounds
from tsbatch.protocol.request import Request
from tsbatch.tasks.audio_classification import AudioClassificationHandler
from tsbatch.worker.context import ModelContext

# WavLM calls torch's attention with masks of two kinds, which torch deprecates; the pipeline makes it do so too.
pytestmark = pytest.mark.filterwarnings("ignore:Support for mismatched key_padding_mask:UserWarning")

SOUNDS = sounds()
BODIES = [base64.b64encode(raw).decode() for raw in SOUNDS]
NAMES = {place: f"sound {place}" for place in range(6)}


def load(folder, **settings):
    handler = AudioClassificationHandler()
    handler.load(
        ModelContext(model_dir=folder, batch_size=32, config={"tsbatch": {"warmup": False, "threads": 1, **settings}})
    )
    return handler


def save_spectrogram_model(folder):
    """An Audio Spectrogram Transformer: every sound becomes a spectrogram of one size."""
    import transformers

    config = transformers.ASTConfig(
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=64,
        max_length=128,
        num_mel_bins=32,
        id2label=NAMES,
        label2id={name: place for place, name in NAMES.items()},
    )
    model = transformers.ASTForAudioClassification(config).eval()
    fill(model, seed=0, gain=2.0)
    model.save_pretrained(folder)
    transformers.ASTFeatureExtractor(max_length=128, num_mel_bins=32).save_pretrained(folder)


def save_kind(folder, kind):
    if kind == "ast":
        return save_spectrogram_model(folder)
    name, norm, seed, head = {
        "group": ("Wav2Vec2ForSequenceClassification", "group", 0, 8.0),
        "layer": ("Wav2Vec2ForSequenceClassification", "layer", 0, 8.0),
        "wavlm": ("WavLMForSequenceClassification", "layer", 4, 3.0),
    }[kind]
    labels = {"id2label": NAMES, "label2id": {name: place for place, name in NAMES.items()}}
    return save_waveform_model(folder, name, feat_extract_norm=norm, seed=seed, head=head, **labels)


@pytest.fixture(
    scope="module",
    params=["group", "layer", *(pytest.param(kind, marks=pytest.mark.slow) for kind in ("wavlm", "ast"))],
)
def model(request, tmp_path_factory):
    from transformers import pipeline

    folder = tmp_path_factory.mktemp("classifier")
    save_kind(folder, request.param)
    return folder, request.param, pipeline("audio-classification", model=str(folder), device="cpu")


def test_answers_as_the_pipeline(model):
    folder, kind, oracle = model
    rate = oracle.feature_extractor.sampling_rate
    expected = [oracle(heard(raw, rate), top_k=None) for raw in SOUNDS]
    tops = np.array([[entry["score"] for entry in answer[:2]] for answer in expected])
    assert len({answer[0]["label"] for answer in expected}) >= 2
    assert len({f"{answer[0]['score']:.4f}" for answer in expected}) >= 30
    assert (tops[:, 0] - tops[:, 1]).min() > 1e-2
    handler = load(folder)
    assert handler.pads == (kind in ("layer", "wavlm"))
    worst = 0.0
    for place, answer in answers_in_batches(handler, [{"inputs": b, "parameters": {"top_k": None}} for b in BODIES]):
        mine = {entry["label"]: entry["score"] for entry in answer}
        theirs = {entry["label"]: entry["score"] for entry in expected[place]}
        assert mine.keys() == theirs.keys()
        worst = max(worst, *(abs(mine[label] - theirs[label]) for label in mine))
        assert answer[0]["label"] == expected[place][0]["label"]
    assert worst < 1e-4


def test_every_request_has_its_own_parameters_in_one_pass(model):
    folder, _, oracle = model
    handler = load(folder)
    sound, rate = BODIES[20], oracle.feature_extractor.sampling_rate
    wishes = [{}, {"top_k": 2}, {"function_to_apply": "sigmoid", "top_k": 1}, {"function_to_apply": "none"}]
    passes = []
    inner = handler.outputs
    handler.outputs = lambda batch, wish: passes.append(1) or inner(batch, wish)
    replies = handler.answer([Request.of({"inputs": sound, "parameters": wish}) for wish in wishes])
    assert len(passes) == 1
    for reply, wish in zip(replies, wishes, strict=True):
        expected = oracle(heard(SOUNDS[20], rate), **{"top_k": 5, **wish})
        answer = json.loads(reply.body)
        assert [entry["label"] for entry in answer] == [entry["label"] for entry in expected]
        assert [entry["score"] for entry in answer] == pytest.approx([entry["score"] for entry in expected], abs=1e-4)


def test_labels_are_told(model):
    handler = load(model[0], warmup=True)
    told = handler.describe_handle()
    assert told["labels"] == list(NAMES.values())
    assert told["task"] == "audio-classification"


def test_a_wrong_parameter_is_422(model):
    handler = load(model[0])
    (reply,) = handler.answer([Request.of({"inputs": BODIES[0], "parameters": {"top_k": 0}})])
    assert reply.status == 422
