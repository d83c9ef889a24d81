"""Tiny transformers audio models whose answers differ between sounds, with their feature extractors and tokenizers."""

from __future__ import annotations

import json

import torch

from tests.tiny_text import save_bpe

LETTERS = ["<pad>", "<s>", "</s>", "<unk>", "|", *"ABCDEFGHIJKLMNOPQRSTUVWXYZ'"]
LANGUAGES = ("en", "de", "fr")
_WAVEFORM = {
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 64,
    "conv_dim": (16, 16, 32),
    "conv_kernel": (10, 16, 16),
    "conv_stride": (5, 8, 8),
    "num_feat_extract_layers": 3,
    "num_conv_pos_embeddings": 16,
    "num_conv_pos_embedding_groups": 4,
    "vocab_size": len(LETTERS),
    "pad_token_id": 0,
    "mask_time_prob": 0.0,
}


def fill(model, *, seed, gain):
    """Gives every weight matrix and bias random numbers, the same ones with every version of transformers.

    Args:
        model: whose.
        seed: of the numbers.
        gain: how much a layer makes of what comes in; transformers starts with so little that all answers are alike.
    """
    numbers = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, weights in sorted(model.named_parameters()):
            if weights.ndim > 1:
                weights.normal_(0, gain / weights[0].numel() ** 0.5, generator=numbers)
            elif name.endswith("bias"):
                weights.normal_(0, 0.02, generator=numbers)


def save_waveform_model(folder, name, *, seed=0, gain=1.0, head=3000.0, **config):
    """A model on waveforms: Wav2Vec2ForCTC, HubertForSequenceClassification and their like.

    Args:
        folder: where to.
        name: the class in transformers.
        seed: of the weights.
        gain: as for :func:`fill`.
        head: factor on the last layer, so that no two best scores are near.
        config: further settings of the config.
    """
    import transformers

    config_class = getattr(transformers, f"{name.split('For')[0]}Config")
    model = getattr(transformers, name)(config_class(**{**_WAVEFORM, **config})).eval()
    fill(model, seed=seed, gain=gain)
    last = model.lm_head if hasattr(model, "lm_head") else model.classifier
    with torch.no_grad():
        last.weight.mul_(head)
    model.save_pretrained(folder)
    masked = config.get("feat_extract_norm") == "layer"
    transformers.Wav2Vec2FeatureExtractor(return_attention_mask=masked).save_pretrained(folder)
    if name.endswith("CTC"):
        (folder / "vocab.json").write_text(json.dumps({letter: place for place, letter in enumerate(LETTERS)}))
        transformers.Wav2Vec2CTCTokenizer(folder / "vocab.json").save_pretrained(folder)
    return model


def save_speech_to_text(folder, *, seed=3, gain=2.0, head=20.0, num_beams=1):
    """A Speech2Text with a byte-level tokenizer in place of its own, which needs the sentencepiece package."""
    import transformers

    words = save_bpe(folder)
    model = transformers.Speech2TextForConditionalGeneration(
        transformers.Speech2TextConfig(
            vocab_size=words,
            d_model=32,
            encoder_layers=2,
            decoder_layers=2,
            encoder_attention_heads=4,
            decoder_attention_heads=4,
            encoder_ffn_dim=64,
            decoder_ffn_dim=64,
            conv_channels=32,
            max_source_positions=1000,
            max_target_positions=64,
            decoder_start_token_id=1,
            bos_token_id=1,
            eos_token_id=1,
            pad_token_id=0,
            tie_word_embeddings=False,
        )
    ).eval()
    fill(model, seed=seed, gain=gain)
    with torch.no_grad():
        model.lm_head.weight.mul_(head)
    ids = {"bos_token_id": 1, "eos_token_id": 1, "pad_token_id": 0, "decoder_start_token_id": 1}
    beams = {"num_beams": num_beams} if num_beams else {}
    model.generation_config = transformers.GenerationConfig(**ids, **beams, max_new_tokens=12)
    model.save_pretrained(folder)
    transformers.Speech2TextFeatureExtractor(return_attention_mask=True).save_pretrained(folder)
    return model


def save_whisper(folder, *, seed=6, gain=2.5, letters=8.0, max_new_tokens=12, num_beams=1):
    """A Whisper of three languages that writes bytes, and hears three seconds at once where real ones hear thirty."""
    import transformers

    words = _save_whisper_tokenizer(folder)
    ids = {word: place for place, word in enumerate(words)}
    end, start = ids["<|endoftext|>"], ids["<|startoftranscript|>"]
    model = transformers.WhisperForConditionalGeneration(
        transformers.WhisperConfig(
            vocab_size=len(words),
            d_model=32,
            encoder_layers=2,
            decoder_layers=2,
            encoder_attention_heads=4,
            decoder_attention_heads=4,
            encoder_ffn_dim=64,
            decoder_ffn_dim=64,
            max_source_positions=150,
            max_target_positions=64,
            decoder_start_token_id=start,
            bos_token_id=end,
            eos_token_id=end,
            pad_token_id=end,
            median_filter_width=3,
            tie_word_embeddings=False,
        )
    ).eval()
    fill(model, seed=seed, gain=gain)
    with torch.no_grad():  # letters before times and marks, which are far more
        model.proj_out.weight[[ids[letter] for letter in "abcdefghijklmnopqrstuvwxyzĠ"]] *= letters
    model.generation_config = transformers.GenerationConfig(
        bos_token_id=end,
        eos_token_id=end,
        pad_token_id=end,
        decoder_start_token_id=start,
        is_multilingual=True,
        lang_to_id={f"<|{code}|>": ids[f"<|{code}|>"] for code in LANGUAGES},
        task_to_id={task: ids[f"<|{task}|>"] for task in ("translate", "transcribe")},
        no_timestamps_token_id=ids["<|notimestamps|>"],
        alignment_heads=[[0, 1], [1, 2]],
        max_initial_timestamp_index=50,
        suppress_tokens=[],
        begin_suppress_tokens=[end],
        max_new_tokens=max_new_tokens,
        **({"num_beams": num_beams} if num_beams else {}),
    )
    model.save_pretrained(folder)
    transformers.WhisperFeatureExtractor(chunk_length=3).save_pretrained(folder)
    return model


def _save_whisper_tokenizer(folder):
    """Writes the tokenizer and returns its words in the order of their ids."""
    import transformers
    from tokenizers import AddedToken, pre_tokenizers

    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    special = [
        "<|endoftext|>",
        "<|startoftranscript|>",
        *[f"<|{code}|>" for code in LANGUAGES],
        "<|translate|>",
        "<|transcribe|>",
        "<|startoflm|>",
        "<|startofprev|>",
        "<|nospeech|>",
        "<|notimestamps|>",
    ]
    times = [f"<|{step * 0.02:.2f}|>" for step in range(1501)]
    (folder / "vocab.json").write_text(json.dumps({word: place for place, word in enumerate([*letters, *special])}))
    (folder / "merges.txt").write_text("#version: 0.2\n")
    # transformers 5 has one class of them, 4 has a slow one of that name.
    fast = getattr(transformers, "WhisperTokenizerFast", None) or transformers.WhisperTokenizer
    tokenizer = fast.from_pretrained(folder)
    tokenizer.add_special_tokens({"additional_special_tokens": special})
    tokenizer.add_tokens([AddedToken(word, special=False) for word in times])
    tokenizer.save_pretrained(folder)
    return [*letters, *special, *times]
