"""Tiny transformers image models whose answers differ between images, and their image processors as files."""

from __future__ import annotations

import json

import torch

from tests.tiny_text import scale_weights

CLASSES = ["apple", "bridge", "cloud", "desk", "engine", "forest", "garden"]
SMALL = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 64}
NORMALIZED = {"do_normalize": True, "image_mean": [0.485, 0.456, 0.406], "image_std": [0.229, 0.224, 0.225]}

RESNET = {"embedding_size": 16, "hidden_sizes": [16, 24], "depths": [1, 1], "layer_type": "basic"}
SWIN = {"embed_dim": 16, "depths": [1, 1, 1, 1], "num_heads": [1, 2, 2, 4], "window_size": 4}
DETR = {
    "d_model": 32,
    "encoder_layers": 1,
    "decoder_layers": 2,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 4,
    "encoder_ffn_dim": 64,
    "decoder_ffn_dim": 64,
    "num_queries": 12,
}
PROCESSORS = {
    "ViT": {"size": {"height": 32, "width": 32}, "resample": 2},
    "ConvNext": {"size": {"shortest_edge": 64}, "crop_pct": 0.875, "resample": 3, **NORMALIZED},
    "CLIP": {"size": {"shortest_edge": 32}, "crop_size": {"height": 32, "width": 32}, "do_center_crop": True},
    "EfficientNet": {"size": {"height": 40, "width": 40}, "rescale_offset": True, "include_top": True},
    "MobileViT": {"size": {"shortest_edge": 40}, "crop_size": {"height": 32, "width": 32}},
    "Detr": {"size": {"shortest_edge": 64, "longest_edge": 96}, **NORMALIZED},
    "Yolos": {"size": {"shortest_edge": 48, "longest_edge": 80}, **NORMALIZED},
    "Segformer": {"size": {"height": 64, "width": 64}, **NORMALIZED},
    "Mask2Former": {"size": {"shortest_edge": 64, "longest_edge": 128}, "size_divisor": 32, **NORMALIZED},
    "MaskFormer": {"size": {"shortest_edge": 64, "longest_edge": 128}, "size_divisor": 32, **NORMALIZED},
}
"""What differs from a processor's own defaults."""


def save_processor(folder, kind, **settings):
    """``preprocessor_config.json``, as image_processor.save_pretrained() writes it."""
    written = {"image_processor_type": f"{kind}ImageProcessor", **PROCESSORS[kind], **settings}
    (folder / "preprocessor_config.json").write_text(json.dumps(written))


def processor_of(folder):
    """The folder's image processor in its PIL variant, as transformers itself loads it."""
    import transformers

    old = transformers.__version__.startswith("4.")
    return transformers.AutoImageProcessor.from_pretrained(
        folder, **({"use_fast": False} if old else {"backend": "pil"})
    )


def save_image_model(folder, name, config, *, processor, seed=0, scale=4.0, classes=CLASSES):
    """A model with weights large enough that its answers differ, and its image processor.

    Args:
        folder: where to.
        name: the class in transformers.
        config: its config, an instance.
        processor: a key of PROCESSORS.
        seed: of the weights.
        scale: factor on every weight matrix.
        classes: the labels.

    Returns:
        The model, in evaluation mode.
    """
    import transformers

    config.id2label = dict(enumerate(classes))
    config.label2id = {label: index for index, label in enumerate(classes)}
    torch.manual_seed(seed)
    model = getattr(transformers, name)(config).eval()
    scale_weights(model, scale)
    model.save_pretrained(folder)
    save_processor(folder, processor)
    return model


def vit(folder, name="ViTForImageClassification", *, seed=8, scale=16.0, **options):
    from transformers import ViTConfig

    config = ViTConfig(**SMALL, image_size=32, patch_size=8)
    return save_image_model(folder, name, config, processor="ViT", seed=seed, scale=scale, **options)


def resnet(folder, name="ResNetForImageClassification", *, seed=14, scale=2.0, **options):
    from transformers import ResNetConfig

    config = ResNetConfig(**RESNET)
    return save_image_model(folder, name, config, processor="ConvNext", seed=seed, scale=scale, **options)


def detr(folder, name="DetrForObjectDetection", *, seed=8, scale=12.0, **options):
    from transformers import DetrConfig, ResNetConfig

    inside, outside = {**RESNET, "out_features": ["stage2"]}, DETR
    if "Segmentation" in name:  # the mask head wants four stages, and counts in eights
        stages = [f"stage{number}" for number in range(1, 5)]
        inside = {**RESNET, "hidden_sizes": [16, 16, 24, 24], "depths": [1, 1, 1, 1], "out_features": stages}
        outside = {**DETR, "encoder_attention_heads": 8}
    backbone = {"backbone_config": ResNetConfig(**inside), "backbone": None}
    config = DetrConfig(use_timm_backbone=False, use_pretrained_backbone=False, **backbone, **outside)
    return save_image_model(folder, name, config, processor="Detr", seed=seed, scale=scale, **options)


def yolos(folder, name="YolosForObjectDetection", *, seed=4, scale=16.0, **options):
    from transformers import YolosConfig

    config = YolosConfig(**SMALL, image_size=[64, 64], patch_size=16, num_detection_tokens=12)
    return save_image_model(folder, name, config, processor="Yolos", seed=seed, scale=scale, **options)


def segformer(folder, **options):
    from transformers import SegformerConfig

    config = SegformerConfig(
        num_encoder_blocks=2,
        depths=[1, 1],
        sr_ratios=[2, 1],
        hidden_sizes=[16, 24],
        patch_sizes=[7, 3],
        strides=[4, 2],
        num_attention_heads=[1, 2],
        mlp_ratios=[2, 2],
        decoder_hidden_size=24,
    )
    return save_image_model(folder, "SegformerForSemanticSegmentation", config, processor="Segformer", **options)


def maskformer(folder, *, seed=2, scale=12.0, **options):
    from transformers import DetrConfig, MaskFormerConfig, SwinConfig

    backbone = SwinConfig(**SWIN, image_size=64, out_features=["stage1", "stage2", "stage3", "stage4"])
    sizes = {"fpn_feature_size": 32, "mask_feature_size": 32}
    config = MaskFormerConfig(backbone_config=backbone, decoder_config=DetrConfig(**DETR), backbone=None, **sizes)
    options = {"processor": "MaskFormer", "seed": seed, "scale": scale, **options}
    return save_image_model(folder, "MaskFormerForInstanceSegmentation", config, **options)


def mask2former(folder, *, seed=3, scale=12.0, **options):
    from transformers import Mask2FormerConfig, SwinConfig

    backbone = SwinConfig(**SWIN, image_size=64, out_features=["stage1", "stage2", "stage3", "stage4"])
    config = Mask2FormerConfig(
        backbone_config=backbone,
        backbone=None,
        feature_size=32,
        mask_feature_size=32,
        hidden_dim=32,
        encoder_feedforward_dim=64,
        encoder_layers=1,
        decoder_layers=3,
        num_attention_heads=4,
        dim_feedforward=64,
        num_queries=12,
    )
    options = {"processor": "Mask2Former", "seed": seed, "scale": scale, **options}
    return save_image_model(folder, "Mask2FormerForUniversalSegmentation", config, **options)


def clip(folder, **options):
    from transformers import CLIPConfig, CLIPTextConfig, CLIPVisionConfig

    vision = CLIPVisionConfig(**SMALL, image_size=32, patch_size=8, projection_dim=24).to_dict()
    text = CLIPTextConfig(**SMALL, vocab_size=50, projection_dim=24).to_dict()
    config = CLIPConfig(vision_config=vision, text_config=text, projection_dim=24)
    return save_image_model(folder, "CLIPModel", config, processor="CLIP", **options)
