"""Tiny sequence classifiers, the handlers on them, and transformers' own pipelines as the oracle."""

from __future__ import annotations

import json
from functools import partial

import torch

from tests.tiny_text import save_bpe, save_model, save_wordpiece
from tests.varied import TEXTS
from tsbatch.protocol.request import Request
from tsbatch.worker.context import ModelContext

LONGEST = 100
"""Tokens that the tokenizers say the models take, since the pipeline cuts where they say; the models take 128."""
_SETTINGS = {
    "Bert": {},
    "Roberta": {},
    "DistilBert": {"tokenizer": partial(save_wordpiece, max_length=LONGEST, types=False)},
    "DebertaV2": {"relative_attention": True, "pos_att_type": ["p2c", "c2p"], "position_biased_input": False},
    "Bart": {
        "tokenizer": partial(save_wordpiece, max_length=LONGEST, types=False),
        "d_model": 32,
        "encoder_layers": 1,
        "decoder_layers": 1,
        "encoder_ffn_dim": 32,
        "decoder_ffn_dim": 32,
        "eos_token_id": 3,
        "bos_token_id": 2,
        "decoder_start_token_id": 3,
    },
    "GPT2": {
        "tokenizer": partial(save_bpe, max_length=LONGEST),
        "pad_token_id": None,
        "bos_token_id": 1,
        "eos_token_id": 1,
    },
}
KINDS = ("Bert", "Roberta", "DistilBert", "DebertaV2", "GPT2", "Bart")
"""Token types, positions from padding_idx + 1, no types, relative positions, a decoder, an encoder-decoder."""


def save_classifier(folder, kind="Bert", *, labels=("bad", "so-so", "good"), seed=0, scale=6.0, spread=3.0, **config):
    """A tiny ``kind``ForSequenceClassification with these labels, and its tokenizer.

    ``spread`` is the standard deviation that its logits have over the varied texts: without, all are nearly alike.
    """
    from transformers import AutoTokenizer

    names = dict(enumerate(labels))
    settings = {
        "tokenizer": partial(save_wordpiece, max_length=LONGEST),
        "id2label": names,
        "label2id": {name: place for place, name in names.items()},
        **_SETTINGS[kind],
        **config,
    }
    model = save_model(folder, f"{kind}ForSequenceClassification", seed=seed, scale=scale, **settings)
    spread_logits(model, AutoTokenizer.from_pretrained(folder), spread)
    model.save_pretrained(folder)
    return folder


def spread_logits(model, tokenizer, spread):
    """Scales each row of the last layer, and moves its bias, so that a class's logits have mean 0 over the texts."""
    head = [module for module in model.modules() if getattr(module, "out_features", 0) == model.config.num_labels][-1]
    with torch.no_grad():
        rows = [model(**tokenizer(text, truncation=True, return_tensors="pt")).logits[0] for text in TEXTS]
        logits = torch.stack(rows)
        factor = spread / logits.std(0)
        head.weight.mul_(factor[:, None])
        if head.bias is not None:
            head.bias.sub_(logits.mean(0)).mul_(factor)


def best_mode():
    """What ``tsbatch.batching.mode: auto`` takes for an encoder; transformers 4's cannot run packed."""
    import transformers

    return "bucketed" if transformers.__version__.startswith("4.") else "packed"


def modes():
    """What to ask of ``tsbatch.batching.mode``."""
    return ["bucketed", "padded", "packed" if best_mode() == "packed" else "auto"]


def load(handler_class, folder, *, batch_size=32, handler=None, **settings):
    """A loaded handler on ``folder``; ``settings`` are those of ``tsbatch:``."""
    loaded = handler_class()
    # Threads that wait for each other inside a tiny layer take ten times as long where tests run side by side.
    config = {"tsbatch": {"threads": 1, **settings}, **({"handler": handler} if handler else {})}
    loaded.load(ModelContext(model_dir=folder, batch_size=batch_size, config=config))
    return loaded


def ask(handler, bodies, *, kind="predict"):
    """Status and parsed answer of each body, all in one batch."""
    replies = handler.answer([Request.of(body, kind=kind) for body in bodies])
    return [(reply.status, json.loads(reply.body)) for reply in replies]


def pipeline_of(task, folder):
    """transformers' pipeline on ``folder``."""
    from transformers import pipeline

    return pipeline(task, model=str(folder), device="cpu")
