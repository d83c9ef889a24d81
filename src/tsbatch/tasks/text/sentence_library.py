"""Chains of sentence-transformers modules that only the library itself computes, one text at a time.

The common chain (Pooling, then Dense and Normalize) is computed by ``tasks/text/pooling.py``. Any other is either
applied by the library's modules to the token states of our encoder (:class:`Chain`), or, if the encoder is no plain
transformer, run by the library as a whole (:func:`load_whole`). The library is imported only for these.
"""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import torch

from tsbatch.errors import LoadError, first_line
from tsbatch.tasks.shared.task_handler import abbreviate, read_json

PACKAGE: Final = "sentence_transformers"
ON_STATES: Final = frozenset({"Pooling", "Dense", "Normalize", "LayerNorm", "Dropout", "CNN"})
"""Modules that need the token states and their mask, and nothing else of the encoder."""
WHOLE: Final = frozenset(
    {"Transformer", "StaticEmbedding", "Router", "Asym", "WordEmbeddings", "WordWeights", "BoW", "LSTM"}
    | {"WeightedLayerPooling"}
)
"""Modules for which the library runs the whole chain."""


@dataclass(frozen=True, slots=True)
class Prompted:
    """A text for the library's own ``encode``, with its prompt apart, since some models leave the prompt out."""

    prompt: str
    text: str

    def __len__(self) -> int:
        return 1 + len(self.prompt) + len(self.text)


def read_modules(model_dir: Path) -> list[tuple[str, Path]]:
    """The kind and the folder of each module of ``modules.json``; empty if there is no such file.

    Raises:
        LoadError: the file is broken, or names a module that neither tsbatch nor the library's encode supports.
    """
    listed = read_json(model_dir / "modules.json")
    if not isinstance(listed, list):
        return []
    modules: list[tuple[str, Path]] = []
    for module in listed:
        described = module if isinstance(module, Mapping) else {}
        package, _, kind = str(described.get("type", "")).rpartition(".")
        if kind not in ON_STATES | WHOLE or not f"{package or PACKAGE}.".startswith(f"{PACKAGE}."):
            raise LoadError(f"modules.json: tsbatch does not know the module {package}.{kind}; write a custom handler")
        modules.append((kind, model_dir / str(described.get("path", ""))))
    return modules


def whole_because(model_dir: Path) -> str | None:
    """Why the library has to run the whole chain: a module or a setting; None if our encoder's states will do.

    Raises:
        LoadError: see :func:`read_modules`.
    """
    modules = read_modules(model_dir)
    for place, (kind, folder) in enumerate(modules):
        if kind not in ON_STATES and (place, kind) != (0, "Transformer"):
            return f"the module {kind}"
        config = read_json(folder / "config.json") if kind == "Pooling" else None
        if isinstance(config, Mapping) and config.get("include_prompt", True) is False:
            return "a Pooling with include_prompt: false"
    sentence = read_json(model_dir / "sentence_bert_config.json")
    modalities = sentence.get("modality_config") if isinstance(sentence, Mapping) else None
    text = modalities.get("text") if isinstance(modalities, Mapping) else None
    if text not in (None, {"method": "forward", "method_output_name": "last_hidden_state"}):
        return "modality_config in sentence_bert_config.json"
    return None


def load_whole(model_dir: Path, reason: str, device: torch.device) -> Any:
    """Load the folder with ``SentenceTransformer``, without a Normalize at its end and without ``truncate_dim``.

    Raises:
        LoadError: the library is missing or cannot load or run the folder, or weights are missing.
    """
    library = _library(reason)
    _check_dense(model_dir.rglob("config.json"))
    try:
        with torch.random.fork_rng(devices=[]):
            states = []
            for seed in (0, 1):  # weights that the folder lacks are random, and the library does not report them
                torch.manual_seed(seed)
                model = library.SentenceTransformer(str(model_dir), device=str(device), local_files_only=True)
                states.append(model.state_dict())
        made_up = [name for name, one in states[0].items() if "pooler" not in name and not _equal(one, states[1][name])]
        if len(model) > 1 and type(model[-1]).__name__ == "Normalize":
            del model[-1]  # the request decides about it, as with our own pooling
        model.truncate_dim = None
        model.encode("a text", convert_to_tensor=True, show_progress_bar=False)
    except Exception as error:  # the library raises many kinds
        said = first_line(error).replace(str(model_dir), "the archive")
        raise LoadError(f"sentence-transformers cannot run this folder ({reason}): {said}") from error
    if made_up:
        raise LoadError(f"the folder has no weights for {abbreviate(made_up)}; save the whole model with save()")
    return model.eval().requires_grad_(False)


def encode_whole(model: Any, texts: Sequence[Prompted]) -> torch.Tensor:
    """The library's vectors (n, dimensions) of the texts, computed one by one."""
    options = {"convert_to_tensor": True, "show_progress_bar": False}
    return torch.stack([model.encode(one.text, prompt=one.prompt, **options) for one in texts]).float()


class Chain:
    """The library's modules after the transformer, applied to the states of one text after the other.

    One text at a time because modules such as CNN see the padding.
    """

    def __init__(self, modules: Sequence[tuple[str, Path]], reason: str, device: torch.device) -> None:
        """Load the modules.

        Args:
            modules: kind and folder of each module after the transformer.
            reason: what tsbatch does not compute itself, for messages.
            device: where the states will be.

        Raises:
            LoadError: the library is missing, or cannot load a module.
        """
        _library(reason)
        _check_dense(folder / "config.json" for kind, folder in modules if kind == "Dense")
        self.modules = []
        for kind, folder in modules:
            try:
                loaded = getattr(_module_classes(), kind).load(str(folder))
            except Exception as error:  # the library raises many kinds
                raise LoadError(f"{folder.name}: {kind} cannot be loaded: {first_line(error)}") from error
            self.modules.append(loaded.to(device).eval().requires_grad_(False))

    def __call__(self, states: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        """Vectors (n, dimensions) of states (n, tokens, width) and mask (n, tokens); padding is on the right."""
        return torch.cat(
            [
                self._vector(row[None, :count], own[None, :count])
                for row, own, count in zip(states, mask, mask.sum(1).tolist(), strict=True)
            ]
        )

    def _vector(self, states: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        features = {"token_embeddings": states, "attention_mask": mask}
        for module in self.modules:
            features = module(features)
        return features["sentence_embedding"]


def _check_dense(paths: Iterable[Path]) -> None:
    """Refuse options of Dense that this version of the library does not know, since it passes over them."""
    known = inspect.signature(_module_classes().Dense).parameters.keys()
    for path in paths:
        config = read_json(path)
        if isinstance(config, Mapping) and config.keys() >= {"in_features", "out_features"}:
            unknown = sorted(key for key in config.keys() - known if config[key] not in (None, False))
            if unknown:
                raise LoadError(
                    f"{path.parent.name}/config.json: the installed sentence-transformers has no {abbreviate(unknown)} "
                    "in Dense; install a newer one"
                )


def _equal(one: torch.Tensor, other: torch.Tensor) -> bool:
    return one.shape == other.shape and bool(torch.equal(one, other))


def _module_classes() -> Any:
    """The library's classes of modules; in version 6 this name is an alias, which type checkers do not see."""
    return importlib.import_module(f"{PACKAGE}.models")


def _library(reason: str) -> Any:
    try:
        import sentence_transformers
    except ImportError as error:
        raise LoadError(
            f"modules.json: {reason} needs the library sentence-transformers; install tsbatch[sentence-transformers] "
            f"where the model is served, or write a custom handler ({first_line(error)})"
        ) from error
    return sentence_transformers
