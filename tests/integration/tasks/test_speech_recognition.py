"""Speech recognition: tiny models, against transformers.pipeline on the same folder, sound by sound."""

from __future__ import annotations

import base64
import json

import numpy as np
import pytest

from tests.tiny_audio import save_speech_to_text, save_waveform_model, save_whisper
from tests.varied import batches
from tests.varied_sounds import encoded, heard, noise, sounds, speech
from tsbatch.errors import LoadError
from tsbatch.protocol.request import Request
from tsbatch.tasks.speech_recognition import SpeechRecognitionHandler
from tsbatch.worker.context import ModelContext

# WavLM calls torch's attention with masks of two kinds, which torch deprecates; the pipeline makes it do so too.
pytestmark = pytest.mark.filterwarnings("ignore:Support for mismatched key_padding_mask:UserWarning")

RATE = 16_000
SOUNDS = sounds()
HEARD = [heard(raw, RATE) for raw in SOUNDS]
GROUP = {"name": "Wav2Vec2ForCTC", "feat_extract_norm": "group", "seed": 0}
LAYER = {"name": "Wav2Vec2ForCTC", "feat_extract_norm": "layer", "do_stable_layer_norm": True, "seed": 2}
HUBERT = {"name": "HubertForCTC", "feat_extract_norm": "layer", "seed": 2}
WAVLM = {"name": "WavLMForCTC", "feat_extract_norm": "group", "seed": 3}


def load(folder, *, batch_size=32, options=None, **settings):
    handler = SpeechRecognitionHandler()
    config = {"tsbatch": {"warmup": False, "threads": 1, **settings}, "handler": options or {}}
    handler.load(ModelContext(model_dir=folder, batch_size=batch_size, config=config))
    return handler


def load_whisper(folder):
    return load(folder, options={"num_beams": 1})  # 4.57 takes the 1 of a generation config for none at all


def ask(handler, raws, **parameters):
    body = {"inputs": None, "parameters": parameters}
    replies = handler.answer([Request.of({**body, "inputs": base64.b64encode(raw).decode()}) for raw in raws])
    return [(reply.status, json.loads(reply.body)) for reply in replies]


def answers(handler, raws, **parameters):
    replies = ask(handler, raws, **parameters)
    assert [status for status, _ in replies] == [200] * len(raws), replies
    return [body for _, body in replies]


def pipeline_of(folder):
    from transformers import pipeline

    return pipeline("automatic-speech-recognition", model=str(folder), device="cpu")


def written(oracle, sound, *, chunk_length_s=3, num_beams=1, language=None, task=None, **more):
    """The pipeline's answer of a Whisper; in 4.57 it has its own length whatever the model's generation config says."""
    given = {"language": language, "task": task, "num_beams": num_beams, "max_new_tokens": 12}
    named = {name: value for name, value in given.items() if value is not None}
    return plain(oracle(sound, chunk_length_s=chunk_length_s, generate_kwargs=named, **more))


def plain(answer):
    """A pipeline's answer as JSON has it."""
    return json.loads(json.dumps(answer))


def longs():
    """Sounds of several windows of a second or two."""
    return [encoded(speech(seconds, RATE, seed=80 + place), RATE) for place, seconds in enumerate((2.5, 3.1, 4.4))]


@pytest.fixture(scope="module", params=[GROUP, LAYER, HUBERT, WAVLM], ids=["group", "layer", "hubert", "wavlm"])
def ctc(request, tmp_path_factory):
    folder = tmp_path_factory.mktemp("ctc")
    save_waveform_model(folder, **request.param)
    return folder, request.param


@pytest.fixture(scope="module")
def whisper(tmp_path_factory):
    folder = tmp_path_factory.mktemp("whisper")
    save_whisper(folder)
    return folder


def test_ctc_answers_as_the_pipeline(ctc):
    folder, config = ctc
    oracle = pipeline_of(folder)
    best = []
    oracle.model.register_forward_hook(lambda model, given, output: best.append(output.logits.topk(2, dim=-1).values))
    expected = [oracle(sound)["text"] for sound in HEARD]
    assert len(set(expected)) >= 40  # silence is silence
    assert all(expected)
    assert min(float((frames[..., 0] - frames[..., 1]).min()) for frames in best) > 1e-2
    handler = load(folder)
    assert handler.pads == (config["feat_extract_norm"] == "layer")
    for places in batches(SOUNDS):
        given = answers(handler, [SOUNDS[place] for place in places])
        assert [answer["text"] for answer in given] == [expected[place] for place in places]


def test_ctc_timestamps_and_windows(ctc):
    folder, _ = ctc
    oracle, handler = pipeline_of(folder), load(folder)
    raws = [*longs(), *SOUNDS[20:26]]
    for parameters in (
        {"return_timestamps": "word"},
        {"return_timestamps": "char"},
        {"chunk_length_s": 2.0},
        {"chunk_length_s": 1.0, "stride_length_s": 0.2, "return_timestamps": "char"},
        {"chunk_length_s": 1.5, "stride_length_s": [0.5, 0.1], "return_timestamps": "word"},
        {"chunk_length_s": 0.7, "stride_length_s": [0.0, 0.1]},
    ):
        expected = [plain(oracle(heard(raw, RATE), **parameters)) for raw in raws]
        assert answers(handler, raws, **parameters) == expected


def test_windows_of_all_requests_share_passes(ctc):
    handler = load(ctc[0])
    passes = []
    inner = handler.outputs
    handler.outputs = lambda batch, wish: passes.append(len(batch["input_values"])) or inner(batch, wish)
    raw = encoded(speech(4.0, RATE, seed=5), RATE)
    alone = answers(handler, [raw], chunk_length_s=1.0)[0]
    del passes[:]
    other = encoded(speech(4.0, RATE, seed=6), RATE)
    timed = {"chunk_length_s": 1.0, "return_timestamps": "word"}
    requests = [
        Request.of({"inputs": base64.b64encode(raw).decode(), "parameters": {"chunk_length_s": 1.0}}),
        Request.of({"inputs": base64.b64encode(other).decode(), "parameters": timed}),
    ]
    replies = handler.answer(requests)
    assert json.loads(replies[0].body) == alone
    assert "chunks" in json.loads(replies[1].body)
    assert sum(passes) == 12
    assert len(passes) <= 2  # the last window of each may be of another length


def test_whisper_answers_as_the_pipeline(whisper):
    oracle, handler = pipeline_of(whisper), load_whisper(whisper)
    best = []
    oracle.model.proj_out.register_forward_hook(lambda model, given, output: best.append(output.topk(2, dim=-1).values))
    expected = [written(oracle, sound)["text"] for sound in HEARD]
    assert len(set(expected)) >= 40
    assert all(expected)
    assert min(float((steps[..., 0] - steps[..., 1]).min()) for steps in best) > 1e-2
    for places in batches(SOUNDS):
        given = answers(handler, [SOUNDS[place] for place in places])
        assert [answer["text"] for answer in given] == [expected[place] for place in places]


def test_whisper_languages_tasks_and_timestamps(whisper):
    handler = load_whisper(whisper)
    raws = SOUNDS[18:26]
    seen = set()
    for parameters in (
        {"language": "de"},
        {"language": "french", "task": "translate"},
        {"task": "translate"},
        {"language": "en", "return_timestamps": True},
        {"return_timestamps": "word"},
    ):
        oracle = pipeline_of(whisper)  # in 4.57 it remembers the last language
        expected = [written(oracle, heard(raw, RATE), **parameters) for raw in raws]
        assert answers(handler, raws, **parameters) == expected
        seen.add(json.dumps(expected))
    assert len(seen) >= 4


def test_whisper_wishes_side_by_side(whisper):
    handler = load_whisper(whisper)
    wishes = [{"language": "de"}, {"language": "fr"}, {}, {"task": "translate"}, {"return_timestamps": True}] * 2
    alone = [answers(handler, [raw], **wish)[0] for raw, wish in zip(SOUNDS[20:], wishes, strict=False)]
    requests = [
        Request.of({"inputs": base64.b64encode(raw).decode(), "parameters": wish})
        for raw, wish in zip(SOUNDS[20:], wishes, strict=False)
    ]
    assert [json.loads(reply.body) for reply in handler.answer(requests)] == alone


def test_whisper_hears_long_sounds_in_windows(whisper):
    oracle, handler = pipeline_of(whisper), load_whisper(whisper)
    raws = [encoded(speech(seconds, 8_000, seed=90), 8_000) for seconds in (3.1, 4.7, 8.0)]
    for more in ({}, {"return_timestamps": True}):
        expected = [written(oracle, heard(raw, RATE), **more) for raw in raws]
        assert answers(handler, raws, **more) == expected
    expected = [written(oracle, sound, chunk_length_s=1) for sound in HEARD[18:22]]
    assert answers(handler, SOUNDS[18:22], chunk_length_s=1.0) == expected


@pytest.fixture(scope="module")
def speech_to_text(tmp_path_factory):
    folder = tmp_path_factory.mktemp("speech_to_text")
    save_speech_to_text(folder)
    return folder


def test_another_encoder_decoder_answers_as_the_pipeline(speech_to_text):
    oracle = pipeline_of(speech_to_text)
    best = []
    oracle.model.lm_head.register_forward_hook(lambda model, given, output: best.append(output.topk(2, dim=-1).values))
    greedy = {"num_beams": 1, "max_new_tokens": 12}
    with np.errstate(divide="ignore", invalid="ignore"):  # of silence, or a band without sound, it makes no numbers
        features = [oracle.feature_extractor(sound, sampling_rate=RATE)["input_features"][0] for sound in HEARD]
    loud = {raw: sound for raw, sound, made in zip(SOUNDS, HEARD, features, strict=True) if np.isfinite(made).all()}
    expected = {raw: oracle(sound, generate_kwargs=greedy)["text"] for raw, sound in loud.items()}
    raws = [raw for raw in loud if expected[raw]]
    assert len({expected[raw] for raw in raws}) >= 40
    assert min(float((steps[..., 0] - steps[..., 1]).min()) for steps in best) > 1e-2
    handler = load(speech_to_text, options={"num_beams": 1})
    for places in batches(raws):
        given = answers(handler, [raws[place] for place in places])
        assert given == [{"text": expected[raws[place]]} for place in places]


def test_another_encoder_decoder_hears_a_sound_as_a_whole(speech_to_text, tmp_path):
    handler = load(speech_to_text, batch_size=2, warmup=True, options={"max_window_seconds": 2.0})
    wrong = [{"chunk_length_s": 1.0}, {"stride_length_s": 0.5}, {"return_timestamps": True}, {"language": "en"}]
    for parameters in [*wrong, {"task": "translate"}]:
        [(status, body)] = ask(handler, SOUNDS[20:21], **parameters)
        assert (status, body["error"]["expected"]) == (422, "no such parameter"), parameters
    [(status, body)] = ask(handler, [encoded(speech(2.1, RATE, seed=1), RATE)])
    assert (status, body["error"]["message"]) == (413, "the sound is 2.1 seconds long, over the longest window of 2")
    # Five beams, as the pipeline has it where the folder does not say.
    save_speech_to_text(tmp_path, head=3.0, num_beams=None)
    beams = {"num_beams": 5, "max_new_tokens": 12}
    expected = [pipeline_of(tmp_path)(sound, generate_kwargs=beams)["text"] for sound in HEARD[18:24]]
    assert [answer["text"] for answer in answers(load(tmp_path), SOUNDS[18:24])] == expected
    assert expected != [answer["text"] for answer in answers(load(tmp_path, options={"num_beams": 1}), SOUNDS[18:24])]


def test_whisper_beams_are_the_pipelines_unless_set(tmp_path):
    save_whisper(tmp_path, num_beams=None)
    oracle = pipeline_of(tmp_path)
    expected = [written(oracle, sound, num_beams=None)["text"] for sound in HEARD[18:24]]
    assert [answer["text"] for answer in answers(load(tmp_path), SOUNDS[18:24])] == expected
    greedy = [written(oracle, sound)["text"] for sound in HEARD[18:24]]
    assert greedy != expected
    handler = load(tmp_path, options={"num_beams": 1})
    assert [answer["text"] for answer in answers(handler, SOUNDS[18:24])] == greedy


@pytest.mark.parametrize(
    "parameters, status, said",
    [
        ({"return_timestamps": True}, 422, "word"),
        ({"language": "en"}, 422, "one language"),
        ({"task": "translate"}, 422, "one language"),
        ({"chunk_length_s": 61.0}, 422, "at most 60"),
        ({"chunk_length_s": 1.0, "stride_length_s": 0.5}, 422, "strides"),
        ({"chunk_length_s": 0.101, "stride_length_s": 0.05}, 422, "windows"),
        ({"chunk_length_s": -1.0}, 422, "chunk_length_s"),
        ({"chunk_length_s": 1e308}, 422, "chunk_length_s"),
        ({"chunk_length_s": float("nan")}, 422, "chunk_length_s"),
        ({"chunk_length_s": 1.0, "stride_length_s": float("inf")}, 422, "stride_length_s"),
        ({"chunk_length": 1.0}, 422, "did you mean 'chunk_length_s'"),
    ],
)
def test_parameters_that_a_ctc_model_has_not(ctc, parameters, status, said):
    handler = load(ctc[0])
    raw = encoded(noise(6.0, RATE), RATE)
    (found, body), (fine, _) = ask(handler, [raw], **parameters) + ask(handler, [raw])
    assert (found, fine) == (status, 200)
    assert said in json.dumps(body)


@pytest.mark.parametrize(
    "parameters, said",
    [
        ({"return_timestamps": "char"}, "none for letters"),
        ({"language": "klingon"}, "one of: de, en, fr"),
        ({"task": "sing"}, "transcribe"),
        ({"chunk_length_s": 3.1}, "at most 3,"),
    ],
)
def test_parameters_that_whisper_has_not(whisper, parameters, said):
    ((status, body),) = ask(load_whisper(whisper), [SOUNDS[20]], **parameters)
    assert status == 422
    assert said in json.dumps(body)


def test_one_broken_sound_hurts_itself_alone(ctc):
    handler = load(ctc[0])
    raws = [*SOUNDS[:3], b"no sound at all", SOUNDS[3][:200], *SOUNDS[4:6]]
    replies = ask(handler, raws)
    assert [status for status, _ in replies] == [200, 200, 200, 415, 422, 200, 200]
    assert [body for status, body in replies if status == 200] == answers(handler, [*SOUNDS[:3], *SOUNDS[4:6]])


def test_too_short_and_too_long(ctc):
    handler = load(ctc[0], options={"max_seconds": 3.0, "max_window_seconds": 2.0, "chunk_length_s": 2.0})
    least = handler.min_samples
    replies = ask(handler, [encoded(noise(1, RATE)[:count], RATE) for count in (least - 1, least)])
    assert [status for status, _ in replies] == [422, 200]
    assert f"at least {least}" in json.dumps(replies[0][1])
    assert ask(handler, [encoded(noise(3.1, RATE), RATE)])[0][0] == 413
    assert ask(handler, [encoded(noise(2.9, RATE), RATE)])[0][0] == 200
    assert ask(handler, [encoded(noise(2.9, RATE), RATE)], chunk_length_s=0.0)[0][0] == 413


def test_many_sounds_of_one_request_are_not_too_long_together(ctc):
    handler = load(ctc[0], options={"max_seconds": 1.0, "max_request_seconds": 2.5})
    sound = base64.b64encode(encoded(noise(1.0, RATE), RATE)).decode()
    replies = handler.answer([Request.of([sound] * 2), Request.of([sound] * 3), Request.of([sound] * 2)])
    assert [reply.status for reply in replies] == [200, 413, 200]
    assert "over 2.5 seconds long together" in json.loads(replies[1].body)["error"]["message"]
    longer = load(ctc[0], options={"max_seconds": 3.0, "max_request_seconds": 1.0})
    assert [ask(longer, [encoded(noise(seconds, RATE), RATE)])[0][0] for seconds in (2.9, 3.1)] == [200, 413]


def test_raw_bodies_forms_and_data_urls(ctc):
    handler = load(ctc[0])
    raw = SOUNDS[20]
    expected = answers(handler, [raw])[0]
    text = base64.b64encode(raw).decode()
    tensor = {"name": "sound", "datatype": "BYTES", "shape": [1], "data": [text]}
    requests = [
        Request(fields={"body": raw}, content_types={"body": "audio/wav"}),
        Request(fields={"data": raw}, content_types={"data": "audio/x-wav"}),
        Request.of({"inputs": f"data:audio/wav;base64,{text}"}),
        Request.of({"instances": [{"b64": text}]}),
        Request.of({"inputs": [tensor]}),
        Request.of([text, text]),
    ]
    bodies = [json.loads(reply.body) for reply in handler.answer(requests)]
    assert bodies[:3] == [expected] * 3
    assert bodies[3] == {"predictions": [expected]}
    assert bodies[4]["outputs"][0]["data"] == [expected["text"]]
    assert bodies[5] == [expected] * 2


def test_it_warms_up_and_describes_itself(ctc):
    handler = load(ctc[0], warmup=True)
    told = handler.describe_handle()
    assert told["task"] == "speech-recognition"
    assert told["max_window_seconds"] == 60.0
    assert "return_timestamps" in told["parameters"]


def test_padding_is_refused_where_it_changes_answers(tmp_path):
    save_waveform_model(tmp_path, **GROUP)
    with pytest.raises(LoadError, match=r"batching\.mode: padded cannot be used"):
        load(tmp_path, batching={"mode": "padded"})


def test_a_window_over_what_is_heard_at_once_is_a_wrong_setting(tmp_path):
    save_waveform_model(tmp_path, **GROUP)
    with pytest.raises(LoadError, match=r"handler\.chunk_length_s: over the longest window, 20 seconds"):
        load(tmp_path, options={"max_window_seconds": 20.0, "chunk_length_s": 21.0})
