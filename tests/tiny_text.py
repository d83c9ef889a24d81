"""Tiny transformers text models whose answers differ between inputs, and tokenizers that know every script."""

from __future__ import annotations

from collections import Counter
from importlib.metadata import version

import torch

from tests.varied import TEXTS

SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
MODES = ["packed" if version("transformers").startswith("5") else "auto", "bucketed", "padded"]
"""How features may share a pass: before transformers 5 most models could not be packed, and auto says so."""


def save_wordpiece(folder, *, max_length=128, types=True, extra=()):
    """A BERT-like tokenizer trained on the varied texts: WordPiece, lower case, pairs.

    Args:
        folder: where to.
        max_length: its model_max_length.
        types: whether it makes token types.
        extra: texts whose words it should also know.

    Returns:
        The number of words it knows.
    """
    from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors
    from transformers import PreTrainedTokenizerFast

    normalizer, splitter = normalizers.BertNormalizer(lowercase=True), pre_tokenizers.BertPreTokenizer()
    known = [normalizer.normalize_str(text) for text in [*TEXTS, *extra]]
    words = Counter(word for text in known for word, _ in splitter.pre_tokenize_str(text))
    vocabulary = {piece: number for number, piece in enumerate([*SPECIAL, *_pieces(words)])}
    tokenizer = Tokenizer(models.WordPiece(vocabulary, unk_token="[UNK]"))
    tokenizer.normalizer, tokenizer.pre_tokenizer = normalizer, splitter
    tokenizer.decoder = decoders.WordPiece()
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]",
        pair="[CLS] $A [SEP] $B:1 [SEP]:1",
        special_tokens=[("[CLS]", 2), ("[SEP]", 3)],
    )
    PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token="[PAD]",
        unk_token="[UNK]",
        cls_token="[CLS]",
        sep_token="[SEP]",
        mask_token="[MASK]",
        model_max_length=max_length,
        model_input_names=["input_ids", *(["token_type_ids"] if types else []), "attention_mask"],
    ).save_pretrained(folder)
    return tokenizer.get_vocab_size()


def _pieces(words, common=150):
    """Every character, at the start of a word and inside one, and the commonest words and parts of words.

    The trainers of tokenizers settle ties by the order of a hash table, which is another one each time.
    """
    letters = {word[0] for word in words} | {"##" + letter for word in words for letter in word[1:]}
    parts = Counter()
    for word, count in words.items():
        for size in (2, 3, len(word)):
            parts[word[:size]] += count
            for start in range(1, len(word) - size + 1):
                parts["##" + word[start : start + size]] += count
    ordered = sorted(parts, key=lambda part: (-parts[part], part))
    return list(dict.fromkeys([*sorted(letters), *ordered[:common]]))


def save_bpe(folder, *, max_length=128, eos="</s>", extra=()):
    """A byte-level BPE tokenizer trained on the varied texts, for generators; returns its number of words."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=400,
        special_tokens=["<pad>", eos],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator([*TEXTS, *extra], trainer)
    PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token="<pad>",
        eos_token=eos,
        model_max_length=max_length,
        model_input_names=["input_ids", "attention_mask"],
    ).save_pretrained(folder)
    return tokenizer.get_vocab_size()


def save_model(folder, name, *, seed=0, scale=6.0, tokenizer=save_wordpiece, config_name=None, **config):
    """A model of 2 layers and width 32 with weights large enough that its answers differ, and its tokenizer.

    Args:
        folder: where to.
        name: the class in transformers, BertForSequenceClassification for example.
        seed: of the weights.
        scale: factor on every weight matrix; transformers starts them so small that all answers are nearly alike.
        tokenizer: saves the tokenizer and returns its number of words.
        config_name: the config's class, where it is not the beginning of ``name``.
        config: further settings of the config.

    Returns:
        The model, in evaluation mode.
    """
    import transformers

    sizes = {
        "vocab_size": tokenizer(folder),
        "hidden_size": 32,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "intermediate_size": 64,
        "max_position_embeddings": 128,
        "pad_token_id": 0,
    }
    torch.manual_seed(seed)
    config_class = getattr(transformers, config_name or f"{name.split('For')[0].removesuffix('Model')}Config")
    model = getattr(transformers, name)(config_class(**{**sizes, **config})).eval()
    scale_weights(model, scale)
    model.save_pretrained(folder)
    return model


def scale_weights(model, scale):
    """Multiplies every weight matrix, and gives every bias a spread."""
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim > 1:
                parameter.mul_(scale)
            elif float(parameter.abs().max()) == 0:
                parameter.normal_(0, 0.2)


def draw_weights(model, seed, scale):
    """Draws every weight anew, in the order of the names: the same model with every version of transformers."""
    numbers = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in sorted(model.named_parameters()):
            if parameter.ndim > 1:
                parameter.normal_(0, 0.02 * scale, generator=numbers)
            elif name.endswith("bias"):
                parameter.normal_(0, 0.2, generator=numbers)
        for module in model.modules():
            if isinstance(module, torch.nn.Embedding) and module.padding_idx is not None:
                module.weight[module.padding_idx] = 0  # as in every trained model: MobileBERT reads its neighbours
