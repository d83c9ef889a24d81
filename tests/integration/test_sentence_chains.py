"""Chains of sentence-transformers modules, each against the library's own ``encode``, one text at a time."""

from __future__ import annotations

import json
import warnings

import numpy as np
import pytest
import torch

from tests.tiny import SPECIAL, WORDS, save_encoder, save_tokenizer, write
from tsbatch.errors import LoadError
from tsbatch.protocol.request import Request
from tsbatch.tasks.text_embedding import TextEmbeddingHandler
from tsbatch.worker.context import ModelContext

pytestmark = pytest.mark.filterwarnings("default")  # sentence-transformers and scikit-learn have their own
with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    import sentence_transformers as library
    from sentence_transformers import SentenceTransformer, models

TEXTS = [
    "a cat sat on the mat",
    "the dog , today . it ran",
    "a",
    "",
    "Very FAST [CLS] cat",
    "the cat ran away from it all and " * 12,
    "a cat sat on the mat",
]
WIDTH = 16


def encoder(folder, **options):
    if not (folder / "encoder").is_dir():
        from safetensors.torch import load_file, save_file

        save_encoder(folder / "encoder")
        path = folder / "encoder/model.safetensors"
        weights = load_file(path)
        large = {name: tensor * 8 if tensor.ndim == 2 else tensor for name, tensor in weights.items()}
        save_file(large, path, metadata={"format": "pt"})
    return models.Transformer(str(folder / "encoder"), **options)


def pool(mode="mean", width=WIDTH, **options):
    return models.Pooling(width, mode, **options)


def dense(width=WIDTH, out=8, **options):
    return models.Dense(width, out, **options)


def static(folder):
    tokenizer = save_tokenizer(folder / "words")
    from tokenizers import Tokenizer

    return models.StaticEmbedding(Tokenizer.from_file(str(tokenizer / "tokenizer.json")), embedding_dim=12)


def words(folder):
    from sentence_transformers.models.tokenizer import WhitespaceTokenizer

    vocabulary = [*SPECIAL, *WORDS]
    return models.WordEmbeddings(
        WhitespaceTokenizer(vocabulary, stop_words=[]), np.random.default_rng(0).normal(size=(len(vocabulary), 10))
    )


def layers(folder):
    return [
        encoder(folder, config_args={"output_hidden_states": True}),
        models.WeightedLayerPooling(WIDTH, num_hidden_layers=2, layer_start=1),
        pool(),
    ]


def router(folder):
    query, document = [encoder(folder), pool()], [static(folder), dense(12, WIDTH)]
    return [models.Router.for_query_document(query, document, default_route="document"), models.Normalize()]


IDENTITY = torch.nn.Identity()
RESIDUAL = {"use_residual": True}
TOKENS = {"module_input_name": "token_embeddings", "module_output_name": "token_embeddings"}

OURS = {
    "cls": lambda folder: [encoder(folder), pool("cls")],
    "max": lambda folder: [encoder(folder), pool("max"), models.Normalize()],
    "mean": lambda folder: [encoder(folder), pool()],
    "square root": lambda folder: [encoder(folder), pool("mean_sqrt_len_tokens")],
    "weighted mean": lambda folder: [encoder(folder), pool("weightedmean"), models.Normalize()],
    "last token": lambda folder: [encoder(folder), pool("lasttoken")],
    "three poolings": lambda folder: [encoder(folder), pool(("cls", "mean", "max"))],
    "Dense after": lambda folder: [encoder(folder), pool(), dense(), models.Normalize()],
    "two Dense": lambda folder: [encoder(folder), pool(), dense(bias=False), dense(8, 4, activation_function=IDENTITY)],
    "GELU": lambda folder: [encoder(folder), pool(), dense(activation_function=torch.nn.GELU())],
    "Normalize first": lambda folder: [encoder(folder), pool(), models.Normalize(), dense()],
    "Normalize twice": lambda folder: [encoder(folder), pool(), models.Normalize(), dense(), models.Normalize()],
    "Dropout": lambda folder: [encoder(folder), pool(), models.Dropout(0.3), dense()],
    "max_seq_length": lambda folder: [encoder(folder, max_seq_length=9), pool()],
    "do_lower_case": lambda folder: [encoder(folder, do_lower_case=True), pool()],
}
LIBRARYS = {
    "residual": lambda folder: [encoder(folder), pool(), dense(out=WIDTH, **RESIDUAL)],
    "projected residual": lambda folder: [encoder(folder), pool(), dense(**RESIDUAL), models.Normalize()],
    "Dense on tokens": lambda folder: [encoder(folder), dense(**TOKENS), pool(width=8)],
    "LayerNorm": lambda folder: [encoder(folder), pool(), models.LayerNorm(WIDTH)],
    "CNN": lambda folder: [encoder(folder), models.CNN(WIDTH, 6), pool("max", 18)],
    "layers": layers,
    "LSTM": lambda folder: [words(folder), models.LSTM(10, 8), pool(width=16)],
    "bag of words": lambda folder: [models.BoW([*WORDS]), dense(len(WORDS), 6)],
    "static": lambda folder: [static(folder), models.Normalize()],
    "Router": router,
    "without the prompt": lambda folder: [encoder(folder), pool(include_prompt=False)],
}
if int(library.__version__.split(".")[0]) < 6:  # the newest for transformers 4.57 has no residual, and fails on ""
    for missing in ("residual", "projected residual", "LSTM"):
        del LIBRARYS[missing]


def save(folder, make, **options):
    torch.manual_seed(3)
    SentenceTransformer(modules=make(folder), device="cpu", **options).save(str(folder / "model"))
    return folder / "model"


def load(folder, **config):
    handler = TextEmbeddingHandler()
    handler.load(ModelContext(model_dir=folder, batch_size=16, config=config))
    return handler


def vectors(handler, texts=TEXTS, **parameters):
    replies = handler.answer([Request.of({"inputs": text, "parameters": parameters}) for text in texts])
    assert [reply.status for reply in replies] == [200] * len(texts), replies
    return np.array([json.loads(reply.body)["embedding"] for reply in replies])


def by_the_library(folder, texts=TEXTS, **options):
    model = SentenceTransformer(str(folder), device="cpu")
    return np.array([model.encode(text, show_progress_bar=False, **options) for text in texts])


@pytest.mark.parametrize("kind", [*OURS, *LIBRARYS])
def test_a_chain_answers_as_encode_does_in_any_batch(tmp_path, kind):
    folder = save(tmp_path, {**OURS, **LIBRARYS}[kind])
    handler = load(folder)
    assert (handler.whole is None and handler.head.chain is None) == (kind in OURS)
    wanted = by_the_library(folder)
    assert np.ptp(wanted, axis=0).max() > 1e-2, "the texts have to differ"
    assert np.abs(vectors(handler) - wanted).max() < 1e-4


@pytest.mark.parametrize("kind", ["mean", "without the prompt", "LayerNorm"])
def test_prompts_and_dimensions_as_in_encode(tmp_path, kind):
    prompts = {"query": "the dog ", "document": "cat "}
    make = {**OURS, **LIBRARYS}[kind]
    folder = save(tmp_path, make, prompts=prompts, default_prompt_name="document", truncate_dim=5)
    handler = load(folder)
    for parameters in ({}, {"prompt_name": "query"}, {"prompt": "all "}):
        wanted = by_the_library(folder, **parameters)
        assert wanted.shape[1] == 5
        assert np.abs(vectors(handler, **parameters) - wanted).max() < 1e-4, parameters


def test_what_the_library_cannot_answer_is_refused(tmp_path):
    folder = save(tmp_path, lambda folder: [encoder(folder), models.LSTM(WIDTH, 8), pool()])
    with pytest.raises(LoadError, match=r"sentence-transformers cannot run this folder \(the module LSTM\)"):
        load(folder)
    (folder / "2_Pooling/config.json").unlink()
    with pytest.raises(LoadError, match="the module LSTM"):
        load(folder)


def test_weights_that_the_folder_lacks_are_not_made_up(tmp_path):
    from safetensors.torch import load_file, save_file

    folder = save(tmp_path, LIBRARYS["without the prompt"])
    weights = load_file(folder / "model.safetensors")
    kept = {name: tensor for name, tensor in weights.items() if "layer.1." not in name}
    save_file(kept, folder / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(LoadError, match=r"no weights for .*layer\.1\."):
        load(folder)


def test_options_that_a_whole_model_of_the_library_does_not_have(tmp_path):
    folder = save(tmp_path, LIBRARYS["static"])
    for config, part in [
        ({"handler": {"pooling": "cls"}}, r"handler\.pooling"),
        ({"handler": {"max_length": 5}}, r"handler\.max_length"),
        ({"tsbatch": {"dtype": "bfloat16"}}, "sentence-transformers runs this model itself"),
    ]:
        with pytest.raises(LoadError, match=part):
            load(folder, **config)
    handler = load(folder)
    [reply] = handler.answer([Request.of({"inputs": "a", "parameters": {"truncate": False}})])
    assert (reply.status, b"sentence-transformers cuts" in reply.body) == (422, True)
    unnormalised = vectors(handler, normalize=False)
    assert np.abs(np.linalg.norm(unnormalised[:1], axis=1) - 1).max() > 1e-2


def test_a_dense_layer_without_an_activation_has_tanh(tmp_path):
    folder = save(tmp_path, OURS["Dense after"])
    path = folder / "2_Dense/config.json"
    config = json.loads(path.read_text())
    del config["activation_function"]
    write(path, config)
    assert np.abs(vectors(load(folder)) - by_the_library(folder)).max() < 1e-4


@pytest.mark.parametrize("kind", ["static", "Router", "bag of words"])
def test_a_folder_without_a_transformer_of_its_own_can_be_packaged(tmp_path, kind):
    from tsbatch.errors import UsageError
    from tsbatch.packaging.model_files import model_files

    folder = save(tmp_path, LIBRARYS[kind])
    files, _ = model_files(folder, "text-embedding")
    assert set(files) == {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}
    with pytest.raises(UsageError, match=r"no config\.json"):
        model_files(folder, "text-classification")


@pytest.mark.parametrize("kind", ["Dense on tokens", "static"])
def test_an_option_of_dense_that_the_installed_library_passes_over(tmp_path, kind):
    folder = save(tmp_path, lambda folder: [*LIBRARYS[kind](folder), *([] if kind != "static" else [dense(12)])])
    [path] = (path for path in folder.rglob("config.json") if "in_features" in json.loads(path.read_text()))
    write(path, {**json.loads(path.read_text()), "use_gate": True})
    with pytest.raises(LoadError, match=r"installed sentence-transformers has no use_gate in Dense|use_gate: True"):
        load(folder)
