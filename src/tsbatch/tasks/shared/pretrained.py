"""What every task on a transformers folder shares: loading the model and its processor, and the engine that runs it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

import torch

from tsbatch.errors import LoadError
from tsbatch.models.engines import Engine, Source, export_engine, start_engine
from tsbatch.settings import Dtype
from tsbatch.tasks.shared import pretrained_folder as folders
from tsbatch.tasks.shared.task_handler import TaskHandler


class PretrainedHandler(TaskHandler):
    """Base of the tasks on folders saved by ``save_pretrained``."""

    model_inputs: ClassVar[Sequence[str]] = ()
    """Names of the model's first input, one of which it has to have; empty: any will do."""
    missing_weights: Sequence[str] = ()
    """Weights that the folder lacks, and transformers made up."""

    def load_pretrained(self, auto_class: Any, *, complete: bool = False) -> Any:
        """The model of the folder through one of transformers' Auto classes, memory-mapped where safetensors allow.

        Args:
            auto_class: AutoModel and so on.
            complete: refuse a folder that lacks weights, those of a head for example; transformers makes them up.

        Raises:
            LoadError: what transformers said, in one line, or the names of what is missing.
        """
        from transformers.utils import logging as transformers_logging

        config = folders.read_config(self.model_dir)
        transformers_logging.disable_progress_bar()  # type: ignore[no-untyped-call]  # a worker's stderr is a log
        # Told of other shapes, where transformers itself would raise and name none of them.
        asked = {"output_loading_info": True, "ignore_mismatched_sizes": True, **folders.missing_names(config)}
        model, about = self.from_folder("model", auto_class, **asked)
        folders.check_takes(model, self.model_inputs, self.task)
        folders.check_shapes(about["mismatched_keys"], model)
        self.missing_weights = sorted(about["missing_keys"])
        if complete:
            folders.check_whole(model, config, self.missing_weights, self.task)
        return model.to(self.device)

    def load_pretrained_tokenizer(self) -> Any:
        """The tokenizer of the folder.

        Raises:
            LoadError: what transformers said, in one line, or that its files were not packed.
        """
        from transformers import AutoTokenizer

        tokenizer = self.from_folder("tokenizer", AutoTokenizer, files=folders.TOKENIZER_FILES)
        # transformers 5 makes up an empty vocabulary where the files are missing, and every word is then unknown.
        files = sorted(set(tokenizer.vocab_files_names.values()))
        if files and not any((self.model_dir / file).is_file() for file in files):
            raise LoadError(f"the tokenizer cannot be loaded: the archive has none of {', '.join(files)}")
        return tokenizer

    def from_folder(self, what: str, auto_class: Any, *, files: Sequence[str] = (), **options: Any) -> Any:
        """``auto_class.from_pretrained`` on the archive, without a network.

        Args:
            what: its name in a message: model, tokenizer, image processor ...
            auto_class: one of transformers' Auto classes.
            files: those of which it needs one.
            options: passed on.

        Raises:
            LoadError: what transformers said, in one line.
        """
        try:
            return auto_class.from_pretrained(
                self.model_dir, trust_remote_code=self.settings.trust_remote_code, local_files_only=True, **options
            )
        except Exception as error:  # transformers raises many kinds
            raise folders.cannot_load(what, error, self.model_dir, files=files, task=self.task) from error

    def start_engine(self) -> None:
        """The engine in place of ``self.model.forward``.

        Raises:
            LoadError: it said no, in one line.
        """
        if self.takes_engines:
            start_engine(self.engine, self._engine_source(self.model_dir, self.settings.dtype))

    def export_engine(self, engine: Engine, folder: Path, dtype: Dtype) -> None:
        """Have ``engine`` write what it needs in an archive into the empty ``folder``.

        Not on a packed handler: exporters cannot follow what packing does in Python.

        Raises:
            LoadError: it said no, in one line.
        """
        export_engine(engine, self._engine_source(folder, dtype))

    def engine_batch(self) -> Mapping[str, torch.Tensor]:
        """A micro-batch of three or so different rows, as :meth:`inference` gives to the model, for the engine to try.

        Overridden by what sets ``takes_engines``.
        """
        raise NotImplementedError

    def _engine_source(self, folder: Path, dtype: Dtype) -> Source:
        return Source(self.model, self.engine_batch(), folder, dtype)
