"""Folders saved from a class whose answer is one vector: that vector, by transformers itself, one input at a time."""

from __future__ import annotations

import json
from base64 import b64encode
from io import BytesIO

import numpy as np
import pytest
import torch

from tests.tiny_text import save_wordpiece
from tests.varied import TEXTS
from tsbatch.errors import LoadError
from tsbatch.protocol.request import Request
from tsbatch.tasks.image_embedding import ImageEmbeddingHandler
from tsbatch.tasks.text_embedding import TextEmbeddingHandler
from tsbatch.worker.context import ModelContext

SIZES = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 48}
LONGEST = 60
CLIP = {**SIZES, "projection_dim": 12, "max_position_embeddings": 64, "eos_token_id": 3, "bos_token_id": 2}
TEXT_CLASSES = {
    "DPRContextEncoder": ("DPRConfig", {**SIZES, "max_position_embeddings": 64}, "pooler_output"),
    "DPRQuestionEncoder": (
        "DPRConfig",
        {**SIZES, "max_position_embeddings": 64, "projection_dim": 10},
        "pooler_output",
    ),
    "CLIPTextModelWithProjection": ("CLIPTextConfig", CLIP, "text_embeds"),
    "MetaClip2TextModelWithProjection": ("MetaClip2TextConfig", CLIP, "text_embeds"),
    "ClapTextModelWithProjection": ("ClapTextConfig", {**CLIP, "pad_token_id": 0}, "text_embeds"),
}


def save(folder, kind, config, **sizes):
    import transformers

    torch.manual_seed(0)
    model = getattr(transformers, kind)(getattr(transformers, config)(**sizes))
    with torch.no_grad():
        for weight in model.parameters():
            if weight.ndim > 1:
                weight.copy_(torch.randn(weight.shape) * 0.3)
    model.save_pretrained(folder)
    return model.eval()


def vectors(handler, bodies):
    replies = handler.answer([Request.of(body) for body in bodies])
    assert [reply.status for reply in replies] == [200] * len(bodies), replies
    return np.array([json.loads(reply.body)["embedding"] for reply in replies])


def load(kind, folder, **options):
    handler = kind()
    handler.load(ModelContext(model_dir=folder, batch_size=16, config={"handler": options} if options else {}))
    return handler


@pytest.mark.parametrize("kind", TEXT_CLASSES)
def test_a_text_is_answered_by_the_class_that_was_saved(tmp_path, kind):
    config, sizes, output = TEXT_CLASSES[kind]
    tokenizer = save_wordpiece(tmp_path, max_length=LONGEST)
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(tmp_path)
    model = save(tmp_path, kind, config, vocab_size=len(tokenizer), **sizes)
    found = vectors(load(TextEmbeddingHandler, tmp_path), [{"inputs": text} for text in TEXTS])
    for text, vector in zip(TEXTS, found, strict=True):
        inputs = tokenizer(text, truncation=True, max_length=LONGEST, return_tensors="pt")
        inputs.pop("token_type_ids", None)
        with torch.no_grad():
            wanted = model(**inputs)[output][0]
        assert vector.tolist() == pytest.approx(wanted.tolist(), abs=1e-4), text
    with pytest.raises(LoadError, match=r"handler\.pooling: this model cannot be pooled otherwise"):
        load(TextEmbeddingHandler, tmp_path, pooling="mean")


def test_an_image_is_answered_by_the_class_that_was_saved(tmp_path):
    from PIL import Image
    from transformers import AutoImageProcessor, CLIPImageProcessor

    sizes = {**SIZES, "image_size": 32, "patch_size": 8, "projection_dim": 12}
    model = save(tmp_path, "CLIPVisionModelWithProjection", "CLIPVisionConfig", **sizes)
    CLIPImageProcessor(size={"shortest_edge": 32}, crop_size={"height": 32, "width": 32}).save_pretrained(tmp_path)
    picture, file = Image.fromarray(np.random.default_rng(0).integers(0, 255, (40, 60, 3), dtype=np.uint8)), BytesIO()
    picture.save(file, "PNG")
    handler = load(ImageEmbeddingHandler, tmp_path)
    with torch.no_grad():
        wanted = model(**AutoImageProcessor.from_pretrained(tmp_path)(picture, return_tensors="pt")).image_embeds[0]
    [vector] = vectors(handler, [{"inputs": b64encode(file.getvalue()).decode()}])
    assert vector.tolist() == pytest.approx(wanted.tolist(), abs=1e-3)
    with pytest.raises(LoadError, match=r"handler\.pooling: this model cannot be pooled otherwise"):
        load(ImageEmbeddingHandler, tmp_path, pooling="mean")


def test_a_class_that_cannot_be_supported_is_named(tmp_path):
    save_wordpiece(tmp_path, max_length=LONGEST)
    sizes = {**SIZES, "vocab_size": 300, "max_position_embeddings": 64}
    save(tmp_path, "SiglipTextModel", "SiglipTextConfig", **sizes)
    with pytest.raises(LoadError, match="SiglipTextModel"):
        load(TextEmbeddingHandler, tmp_path)
