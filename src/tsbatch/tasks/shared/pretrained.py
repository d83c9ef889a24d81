"""The base class of the tasks on transformers folders: it loads the model and its processor, and starts the engine."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

import torch

from tsbatch.errors import LoadError
from tsbatch.models.engines import Engine, Source, export_engine, start_engine
from tsbatch.settings import Dtype
from tsbatch.tasks.shared import pretrained_folder as folders
from tsbatch.tasks.shared.task_handler import TaskHandler, class_names


class PretrainedHandler(TaskHandler):
    """Base of the tasks on folders saved by ``save_pretrained``."""

    item_ndim: ClassVar[int | None] = 0
    deterministic: ClassVar[bool] = True
    auto_class: ClassVar[str] = ""
    """The name of transformers' Auto class that loads the model with its head."""
    model_inputs: ClassVar[Sequence[str]] = ()
    """Names for the model's main input, of which it must have one; empty: any."""
    missing_weights: Sequence[str] = ()
    """Weights that the folder lacks, and that transformers initialised at random."""
    unused_weights: Sequence[str] = ()
    """Weights of the folder that the model has no place for."""

    def load_model(self) -> Any:
        """Load the model with :attr:`auto_class`; without one as any handler does.

        Raises:
            LoadError: the folder cannot be loaded, or lacks weights.
        """
        if not self.auto_class:
            return super().load_model()
        import transformers

        return self.load_pretrained(getattr(transformers, self.auto_class), complete=True)

    def load_pretrained(self, auto_class: Any, *, complete: bool = False) -> Any:
        """Load the folder's model with one of transformers' Auto classes, memory-mapped where safetensors allow.

        Args:
            auto_class: AutoModel and so on.
            complete: refuse a folder that lacks weights, of a head for example, which transformers would initialise.

        Raises:
            LoadError: what transformers reported, in one line, or the names of the missing weights.
        """
        from transformers.utils import logging as transformers_logging

        config = folders.read_config(self.model_dir)
        transformers_logging.disable_progress_bar()  # type: ignore[no-untyped-call]  # a worker's stderr is a log
        # Weights of other shapes are reported here; transformers would raise without naming them.
        options = {"output_loading_info": True, "ignore_mismatched_sizes": True, **folders.missing_names(config)}
        model, report = self.from_folder("model", auto_class, **options)
        folders.check_inputs(model, self.model_inputs, self.task)
        folders.check_shapes(report["mismatched_keys"], model)
        self.missing_weights = sorted(report["missing_keys"])
        self.unused_weights = sorted(report["unexpected_keys"])
        if complete:
            folders.check_complete(model, config, self.missing_weights, self.task)
        return model.to(self.device)

    def check_encoder(self, model: Any) -> None:
        """Refuse an encoder whose vectors would not be those of the folder; a pooler may be missing.

        Raises:
            LoadError: weights are missing, or the folder's model has a projection that the encoder lacks.
        """
        folders.check_encoder(model, folders.read_config(self.model_dir), self.missing_weights, self.unused_weights)

    def load_pretrained_tokenizer(self) -> Any:
        """Load the folder's tokenizer.

        Raises:
            LoadError: what transformers reported, in one line, or that the tokenizer's files were not packed.
        """
        from transformers import AutoTokenizer

        tokenizer = self.from_folder("tokenizer", AutoTokenizer, files=folders.TOKENIZER_FILES)
        # Where the files are missing transformers 5 makes an empty vocabulary, in which every word is unknown.
        files = sorted(set(tokenizer.vocab_files_names.values()))
        if files and not any((self.model_dir / file).is_file() for file in files):
            raise LoadError(f"the tokenizer cannot be loaded: the archive has none of {', '.join(files)}")
        return tokenizer

    def from_folder(self, what: str, auto_class: Any, *, files: Sequence[str] = (), **options: Any) -> Any:
        """Call ``auto_class.from_pretrained`` on the archive, without network access.

        Args:
            what: what it loads, for messages: model, tokenizer, image processor ...
            auto_class: one of transformers' Auto classes.
            files: files of which it needs at least one.
            options: passed on.

        Raises:
            LoadError: what transformers reported, in one line.
        """
        try:
            return auto_class.from_pretrained(
                self.model_dir, trust_remote_code=self.settings.trust_remote_code, local_files_only=True, **options
            )
        except Exception as error:  # transformers raises many kinds
            reason = folders.load_failure(error, self.model_dir, files=files, task=self.task)
            raise LoadError(f"the {what} cannot be loaded from the archive: {reason}") from error

    def read_class_names(self) -> list[str]:
        """The names of the model's classes; see :func:`class_names`."""
        config = self.model.config
        return class_names(config.num_labels, folder=self.model_dir, aux=self.aux, config=config)

    def start_engine(self) -> None:
        """Replace ``self.model.forward`` by the engine.

        Raises:
            LoadError: the engine cannot run the model; the reason in one line.
        """
        if self.takes_engines:
            start_engine(self.engine, self._engine_source(self.model_dir, self.settings.dtype))

    def export_engine(self, engine: Engine, folder: Path, dtype: Dtype) -> None:
        """Have ``engine`` write the files that it needs in an archive into the empty ``folder``.

        Not for a packed handler: exporters cannot follow what packing does in Python.

        Raises:
            LoadError: the engine cannot export the model; the reason in one line.
        """
        export_engine(engine, self._engine_source(folder, dtype))

    def engine_batch(self) -> Mapping[str, torch.Tensor]:
        """A micro-batch of about three different rows, as :meth:`inference` passes it to the model, to try an engine.

        Overridden by handlers that set ``takes_engines``.
        """
        raise NotImplementedError

    def _engine_source(self, folder: Path, dtype: Dtype) -> Source:
        return Source(self.model, self.engine_batch(), folder, dtype)
