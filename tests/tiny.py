"""Tiny text models with random weights, built and saved by transformers itself."""

from __future__ import annotations

import json

import torch

WORDS = [
    "a",
    "cat",
    "dog",
    "sat",
    "on",
    "the",
    "mat",
    "and",
    "ran",
    "away",
    "from",
    "it",
    "all",
    "very",
    "fast",
    "today",
]
SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]


def save_tokenizer(folder, *, max_length=None, special=True):
    """A word-level tokenizer; with ``special``, texts become ``[CLS] … [SEP]``."""
    from tokenizers import Tokenizer, models, pre_tokenizers, processors
    from transformers import PreTrainedTokenizerFast

    vocabulary = {word: place for place, word in enumerate([*SPECIAL, *WORDS])}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    if special:
        tokenizer.post_processor = processors.TemplateProcessing(
            single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
        )
    limit = {} if max_length is None else {"model_max_length": max_length}
    PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, pad_token="[PAD]", unk_token="[UNK]", cls_token="[CLS]", sep_token="[SEP]", **limit
    ).save_pretrained(folder)
    return folder


def save_encoder(folder, kind="Bert", *, seed=0, tokenizer=True, **config):
    """A transformers encoder of 2 layers and width 16, with its tokenizer."""
    import transformers

    sizes = {
        "vocab_size": len(SPECIAL) + len(WORDS),
        "hidden_size": 16,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "intermediate_size": 32,
        "max_position_embeddings": 64,
        "pad_token_id": 0,
    }
    torch.manual_seed(seed)
    model = getattr(transformers, f"{kind}Model")(getattr(transformers, f"{kind}Config")(**{**sizes, **config}))
    model.save_pretrained(folder)
    if tokenizer:
        save_tokenizer(folder)
    return folder


def save_sentence_files(folder, *, pooling=None, dense=None, normalize=True, **files):
    """The files that sentence-transformers puts beside a model.

    Args:
        folder: the model's folder.
        pooling: 1_Pooling/config.json.
        dense: a torch.nn.Linear for 2_Dense, with Tanh after it.
        normalize: whether the list ends with Normalize.
        files: further JSON files by name, without the ending.
    """
    from safetensors.torch import save_file

    modules = [("Transformer", "")]
    if pooling is not None:
        modules.append(("Pooling", "1_Pooling"))
        write(folder / "1_Pooling/config.json", pooling)
    if dense is not None:
        modules.append(("Dense", "2_Dense"))
        about = {"in_features": dense.in_features, "out_features": dense.out_features, "bias": dense.bias is not None}
        write(folder / "2_Dense/config.json", {**about, "activation_function": "torch.nn.modules.activation.Tanh"})
        save_file(
            {f"linear.{name}": tensor for name, tensor in dense.state_dict().items()},
            folder / "2_Dense/model.safetensors",
        )
    if normalize:
        modules.append(("Normalize", "3_Normalize"))
    listed = [
        {"idx": place, "name": str(place), "path": path, "type": f"sentence_transformers.models.{kind}"}
        for place, (kind, path) in enumerate(modules)
    ]
    write(folder / "modules.json", listed)
    for name, content in files.items():
        write(folder / f"{name}.json", content)
    return folder


def write(path, content):
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps(content), encoding="utf-8")
