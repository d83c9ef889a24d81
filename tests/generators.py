"""Tiny generating models, and transformers' own texts to compare with."""

from __future__ import annotations

import functools
import json

import torch

from tests.tiny_text import save_bpe, save_model
from tsbatch.protocol.request import Request
from tsbatch.worker.context import ModelContext

NEW = 8
"""New tokens in the tests where nothing else is said."""
EOS = 1
HEAD = 60.0
"""Factor on the states that score the words, so that no two best scores are close."""
LAST_NORMS = ("ln_f.weight", "model.norm.weight", "final_layer_norm.weight", "decoder.layer_norm.weight")
CROSS = 40.0
"""Factor on what a decoder sees of the encoder's text, so that its own texts differ."""
SIZES = {
    "GPT2LMHeadModel": {"config_name": "GPT2Config"},
    "LlamaForCausalLM": {"num_key_value_heads": 2},
    "OPTForCausalLM": {"ffn_dim": 64, "word_embed_proj_dim": 32},
    "BloomForCausalLM": {"max_position_embeddings": None},
    "BartForConditionalGeneration": {},
    "MarianMTModel": {"config_name": "MarianConfig"},
    "M2M100ForConditionalGeneration": {"config_name": "M2M100Config"},
    "T5ForConditionalGeneration": {
        "config_name": "T5Config",
        "d_kv": 8,
        "d_ff": 64,
        "num_layers": 2,
        "num_decoder_layers": 2,
        "max_position_embeddings": None,
    },
}
SCALES = {
    "GPT2LMHeadModel": 20.0,
    "LlamaForCausalLM": 12.0,
    "OPTForCausalLM": 20.0,
    "BloomForCausalLM": 20.0,
    "T5ForConditionalGeneration": 4.0,
}
ENCODER_DECODER = {"encoder_layers": 2, "decoder_layers": 2, "encoder_ffn_dim": 64, "decoder_ffn_dim": 64}


def save_generator(folder, name, *, seed=0, scale=None, tokenizer=save_bpe, generation=None, **config):
    """A generating model of 2 layers and its tokenizer.

    Args:
        folder: where to.
        name: the class in transformers.
        seed: of the weights.
        scale: factor on the weights; by default one at which this model's texts differ.
        tokenizer: saves the tokenizer and returns its number of words.
        generation: settings for generation_config.json.
        config: settings for config.json.
    """
    about = {"eos_token_id": EOS, "bos_token_id": EOS, **SIZES[name]}
    if name.startswith(("Bart", "Marian", "M2M100")):
        about |= {
            **ENCODER_DECODER,
            "decoder_start_token_id": EOS,
            "forced_eos_token_id": None,
            "scale_embedding": False,
        }
        about |= {"encoder_attention_heads": 4, "decoder_attention_heads": 4, "d_model": 32}
    if name.startswith("T5"):
        about |= {"decoder_start_token_id": 0}
    scale = scale or SCALES.get(name, 6.0)
    model = save_model(folder, name, seed=seed, scale=scale, tokenizer=tokenizer, **{**about, **config})
    with torch.no_grad():
        norms = {key: parameter for key, parameter in model.named_parameters() if key.endswith(LAST_NORMS)}
        own = [key for key in norms if ".layers." not in key] or list(norms)
        norms[own[-1]].mul_(HEAD)
        for key, parameter in model.named_parameters():
            if parameter.ndim > 1 and ("encoder_attn" in key or "EncDecAttention" in key):
                parameter.mul_(CROSS)
    model.save_pretrained(folder)
    path = folder / "generation_config.json"
    own = json.loads(path.read_text()) if path.exists() else {}
    path.write_text(json.dumps({**own, **(generation or {})}))
    return folder


def load(handler_class, folder, *, handler=None, **settings):
    """A loaded handler; ``handler`` and ``settings`` as in model-config.yaml."""
    loaded = handler_class()
    # Two threads wait for each other ten times as long as these models compute.
    config = {"tsbatch": {"threads": 1, **settings}, **({"handler": handler} if handler else {})}
    loaded.load(ModelContext(model_dir=folder, batch_size=8, config=config))
    return loaded


def ask(handler, bodies):
    """Status and answer of each body, all in one batch."""
    replies = handler.answer([Request.of(body) for body in bodies])
    return [(reply.status, json.loads(reply.body)) for reply in replies]


def new_texts(handler, bodies):
    """The new texts of bodies for text generation in one batch, all answered."""
    answers = ask(handler, bodies)
    assert [status for status, _ in answers] == [200] * len(bodies), answers
    return [answer[0]["generated_text"] for _, answer in answers]


def new_text_of(text, **parameters):
    """A body for text generation that asks for the new text alone."""
    return {"inputs": text, "parameters": {"return_full_text": False, **parameters}}


@functools.cache
def by_hand(folder):
    """Tokenizer and model of a folder, through transformers alone."""
    from transformers import AutoModelForCausalLM, AutoModelForSeq2SeqLM, AutoTokenizer

    kind = json.loads((folder / "config.json").read_text())
    auto = AutoModelForSeq2SeqLM if kind.get("is_encoder_decoder") else AutoModelForCausalLM
    return AutoTokenizer.from_pretrained(folder), auto.from_pretrained(folder).eval()


def generated(folder, text, *, prefix="", tokenizing=None, clean=None, **settings):
    """The new text of one input, by ``model.generate`` of transformers.

    Args:
        folder: of the model.
        text: the input.
        prefix: before it.
        tokenizing: further settings of the tokenizer.
        clean: its clean_up_tokenization_spaces.
        settings: of ``generate``.

    Returns:
        The text, and the least gap between the two best scores of a step; None with beams.
    """
    tokenizer, model = by_hand(folder)
    inputs = tokenizer(prefix + text, return_tensors="pt", **(tokenizing or {}))
    inputs.pop("token_type_ids", None)
    settings = {"pad_token_id": tokenizer.pad_token_id, **settings}
    with torch.no_grad():
        made = model.generate(**inputs, **settings, return_dict_in_generate=True, output_logits=True)
    start = 1 if model.config.is_encoder_decoder else inputs["input_ids"].shape[1]
    cleaning = {} if clean is None else {"clean_up_tokenization_spaces": clean}
    new = tokenizer.decode(made.sequences[0, start:], skip_special_tokens=True, **cleaning)
    gap = None
    if settings.get("num_beams", 1) == 1:
        best = torch.stack(made.logits)[:, 0].topk(2, dim=-1).values
        gap = float((best[:, 0] - best[:, 1]).min())
    return new, gap


LANGUAGES = ["eng_Latn", "fra_Latn", "deu_Latn", "zho_Hans"]


def save_nllb(folder, *, max_length=256):
    """An NLLB tokenizer trained on the varied texts, with four of its languages; returns its number of words."""
    import transformers
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    from tests.varied import TEXTS

    tokenizer = Tokenizer(models.BPE(unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer.decoder = decoders.Metaspace()
    special = ["<s>", "<pad>", "</s>", "<unk>"]
    trainer = trainers.BpeTrainer(vocab_size=500, special_tokens=special, show_progress=False)
    tokenizer.train_from_iterator(TEXTS, trainer)
    about = {"model_max_length": max_length, "src_lang": LANGUAGES[0]}
    if transformers.__version__.startswith("4."):
        about |= {"tokenizer_object": tokenizer, "additional_special_tokens": LANGUAGES}
        made = transformers.NllbTokenizerFast(**about)
    else:
        about |= {"extra_special_tokens": LANGUAGES}
        trained = json.loads(tokenizer.to_str())["model"]
        merges = [tuple(merge) for merge in trained["merges"]]
        made = transformers.NllbTokenizer(vocab=trained["vocab"], merges=merges, **about)
    made.save_pretrained(folder)
    return len(made)
