"""Pool token states to one vector per text, as sentence-transformers describes it in its model folders.

``modules.json`` lists the modules after the transformer: pooling, dense layers, normalisation. The model was trained
with them; without one of them its vectors look plausible and are wrong. What is not computed here is left to the
library (``tasks/text/sentence_library.py``), and an unknown module is refused.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import torch

from tsbatch.errors import LoadError
from tsbatch.tasks.shared.task_handler import read_json
from tsbatch.tasks.text.sentence_files import check_keys, make_activation, read_mapping
from tsbatch.tasks.text.sentence_library import Chain, read_modules

Pooling = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
"""Maps states (n, tokens, width) and attention mask (n, tokens) to vectors (n, width)."""


def _weighted_sum(states: torch.Tensor, weights: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The weighted sum of the states, and the sum of the weights (n, tokens)."""
    weights = weights.unsqueeze(-1).to(states.dtype)
    return (states * weights).sum(1), weights.sum(1).clamp(min=1e-9)


def _mean(states: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
    total, weight = _weighted_sum(states, weights)
    return total / weight


def _mean_sqrt(states: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    total, weight = _weighted_sum(states, mask)
    return total / weight.sqrt()


def _weighted_mean(states: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    # SGPT (Muennighoff, 2022): later tokens weigh more, since a causal model has seen more by then.
    return _mean(states, mask * torch.arange(1, states.shape[1] + 1, device=states.device))


def _max(states: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    return states.masked_fill(mask.unsqueeze(-1) == 0, torch.finfo(states.dtype).min).amax(1)


def _first(states: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    del mask  # padding is on the right
    return states[:, 0]


def _last(states: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    return states[torch.arange(states.shape[0], device=states.device), mask.sum(1) - 1]


POOLINGS: Final[Mapping[str, Pooling]] = {
    "cls": _first,
    "last": _last,
    "max": _max,
    "mean": _mean,
    "mean_sqrt_len": _mean_sqrt,
    "weighted_mean": _weighted_mean,
}
# The names in 1_Pooling/config.json: a switch for each mode until sentence-transformers 5.2, one string since.
_SWITCHES: Final = {
    "pooling_mode_cls_token": "cls",
    "pooling_mode_max_tokens": "max",
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_mean_sqrt_len_tokens": "mean_sqrt_len",
    "pooling_mode_weightedmean_tokens": "weighted_mean",
    "pooling_mode_lasttoken": "last",
}
_STRINGS: Final = {"weightedmean": "weighted_mean", "mean_sqrt_len_tokens": "mean_sqrt_len", "lasttoken": "last"}


# A key that tsbatch does not know may change the vectors, so it is refused.
_SENTENCE_KEYS: Final = frozenset({"max_seq_length", "do_lower_case", "transformer_task", "modality_config"})
_SENTENCE_DEFAULTS: Final[Mapping[str, Any]] = {
    "module_output_name": "token_embeddings",
    "unpad_inputs": None,
    "processing_kwargs": {},
}
_SENTENCE_FILES: Final = tuple(
    f"sentence_{kind}_config.json"
    for kind in ("bert", "roberta", "distilbert", "camembert", "albert", "xlm-roberta", "xlnet")
)  # the names that the library tries, in this order
_PROMPTING_KEYS: Final = frozenset(
    {"__version__", "prompts", "default_prompt_name", "similarity_fn_name", "truncate_dim", "requirements"}
)
_PROMPTING_DEFAULTS: Final[Mapping[str, Any]] = {"model_type": "SentenceTransformer"}
_DENSE_KEYS: Final = frozenset({"in_features", "out_features", "bias", "activation_function"})
_VECTOR_TO_VECTOR: Final[Mapping[str, Any]] = {
    "module_input_name": "sentence_embedding",
    "module_output_name": "sentence_embedding",
    "use_residual": False,
}


class Unit(torch.nn.Module):
    """Scales vectors to length 1, in front of another layer."""

    def forward(self, vectors: torch.Tensor) -> torch.Tensor:
        """Vectors (n, dimensions) of length 1."""
        return torch.nn.functional.normalize(vectors, dim=-1)


@dataclass(frozen=True, slots=True)
class Head:
    """Turns token states into the vector of a text.

    Attributes:
        poolings: names of :data:`POOLINGS`; several are concatenated, in this order.
        dense: layers after the pooling.
        normalize: scale the vector to length 1 at the end.
        max_length: the number of tokens that the model was trained for, or None.
        prompts: prefixes by name.
        default_prompt: the name of the prompt for a request that asks for none.
        lower: the model was trained on lower case, and its tokenizer does not convert the text by itself.
        dimensions: keep the first so many numbers of the finished vector; None for all (``truncate_dim``).
        chain: the library's modules, in place of ``poolings`` and ``dense``.
    """

    poolings: tuple[str, ...] = ("mean",)
    dense: tuple[torch.nn.Module, ...] = ()
    normalize: bool = True
    max_length: int | None = None
    prompts: Mapping[str, str] = field(default_factory=dict)
    default_prompt: str | None = None
    lower: bool = False
    dimensions: int | None = None
    chain: Chain | None = None

    def __call__(self, states: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        """Vectors (n, dimensions), not yet normalised, of states (n, tokens, width) and mask (n, tokens)."""
        if self.chain is not None:
            return self.chain(states, mask)
        vectors = torch.cat([POOLINGS[name](states, mask) for name in self.poolings], dim=-1)
        for layer in self.dense:
            vectors = layer(vectors)
        return vectors


def read_head(model_dir: Path, device: torch.device) -> Head:
    """Read the head from the folder's sentence-transformers files; without them it is the mean, normalised.

    Raises:
        LoadError: a file is broken, a module is unknown to tsbatch, or the library is needed and not installed.
    """
    modules = read_modules(model_dir)
    options = read_options(model_dir)
    if not modules:
        pooling = model_dir / "1_Pooling"
        return Head(poolings=_read_poolings(pooling) if pooling.is_dir() else ("mean",), **options)
    after = [(kind, folder) for kind, folder in modules[1:] if kind != "Dropout"]  # no effect in evaluation mode
    if all(kind != "Pooling" for kind, _ in after):
        raise LoadError(
            "modules.json: it has no Pooling: the model makes one vector per token (late interaction), and "
            "text-embedding makes one per text; write a custom handler"
        )
    normalize = after[-1][0] == "Normalize"
    after = after[:-1] if normalize else after
    reason = _unproven(after)
    if reason is not None:
        return Head(poolings=(), normalize=normalize, chain=Chain(after, reason, device), **options)
    dense = tuple(Unit() if kind == "Normalize" else _read_dense(folder, device) for kind, folder in after[1:])
    return Head(poolings=_read_poolings(after[0][1]), dense=dense, normalize=normalize, **options)


def read_options(model_dir: Path) -> dict[str, Any]:
    """Read the fields of :class:`Head` that concern the whole chain: prompts, longest input, dimensions.

    Raises:
        LoadError: a file is broken, or has a key that may change the vectors.
    """
    name = next((name for name in _SENTENCE_FILES if (model_dir / name).is_file()), _SENTENCE_FILES[0])
    sentence = read_mapping(model_dir / name)
    where = "config_sentence_transformers.json"
    prompting = read_mapping(model_dir / where)
    check_keys(sentence, name, known=_SENTENCE_KEYS, fixed=_SENTENCE_DEFAULTS, what="vectors")
    check_keys(prompting, where, known=_PROMPTING_KEYS, fixed=_PROMPTING_DEFAULTS, what="vectors")
    return {
        "max_length": sentence.get("max_seq_length"),
        "prompts": prompting.get("prompts") or {},
        "default_prompt": prompting.get("default_prompt_name"),
        "lower": bool(sentence.get("do_lower_case")),
        "dimensions": prompting.get("truncate_dim"),
    }


def _unproven(modules: Sequence[tuple[str, Path]]) -> str | None:
    """What in this chain tsbatch does not compute itself; None if it computes all of it."""
    if modules[0][0] != "Pooling":
        return f"{modules[0][0]} before Pooling"
    for kind, folder in modules[1:]:
        if kind not in ("Dense", "Normalize"):
            return "a second Pooling" if kind == "Pooling" else f"the module {kind}"
        if kind == "Dense":
            config = read_mapping(folder / "config.json")
            known = {*_DENSE_KEYS, *_VECTOR_TO_VECTOR}
            check_keys(config, f"{folder.name}/config.json", known=known, fixed={}, what="vectors")
            _activation(config, folder)
            for key, value in _VECTOR_TO_VECTOR.items():
                if config.get(key, value) not in (value, None):
                    return f"a Dense with {key}: {config[key]}"
    return None


def _read_poolings(folder: Path) -> tuple[str, ...]:
    config = read_json(folder / "config.json")
    where = f"{folder.name}/config.json"
    if not isinstance(config, Mapping):
        raise LoadError(f"{where}: no such file in the archive, though modules.json needs it; pack subfolders too")
    if config.get("include_prompt", True) is False:
        raise LoadError(f"{where}: include_prompt is false, which tsbatch does not support; write a custom handler")
    mode = config.get("pooling_mode")
    modes: Sequence[str] = [mode] if isinstance(mode, str) else list(mode or ())
    named = tuple(_STRINGS.get(name, name) for name in modes) or tuple(
        name for switch, name in _SWITCHES.items() if config.get(switch)
    )
    unknown = [name for name in named if name not in POOLINGS]
    if unknown or not named:
        raise LoadError(f"{where}: unknown pooling {unknown or 'none'}; known are {', '.join(POOLINGS)}")
    return named


def _read_dense(folder: Path, device: torch.device) -> torch.nn.Module:
    from tsbatch.models.loading import load_weights

    config = read_mapping(folder / "config.json")
    activation = _activation(config, folder)
    linear = torch.nn.Linear(config["in_features"], config["out_features"], bias=bool(config.get("bias", True)))
    layers = torch.nn.Sequential()
    layers.add_module("linear", linear)  # the name under which its weights are saved
    layers.add_module("activation", activation)
    weights = folder / "model.safetensors"
    load_weights(layers, weights if weights.is_file() else folder / "pytorch_model.bin", device)
    return layers.eval().requires_grad_(False)


def _activation(config: Mapping[str, Any], folder: Path) -> torch.nn.Module:
    """The activation of a Dense; Tanh if its config.json names none, as in the library.

    Raises:
        LoadError: it is not one of torch.nn, or sizes are missing.
    """
    path = str(config.get("activation_function", "torch.nn.modules.activation.Tanh"))
    activation = make_activation(path)
    if activation is None:
        raise LoadError(f"{folder.name}/config.json: not a dense layer that tsbatch knows: activation {path}")
    if "in_features" not in config or "out_features" not in config:
        raise LoadError(f"{folder.name}/config.json: not a dense layer that tsbatch knows: it has no sizes")
    return activation
