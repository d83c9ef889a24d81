"""What every task on a transformers folder shares: loading the model and its processor, and the engine that runs it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from tsbatch.errors import LoadError
from tsbatch.models.engines import Engine, Source, export_engine, start_engine
from tsbatch.settings import Dtype
from tsbatch.tasks.shared.task import TaskHandler, first_line


class PretrainedHandler(TaskHandler):
    """Base of the tasks on folders saved by ``save_pretrained``."""

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

        if not (self.model_dir / "config.json").is_file():
            raise LoadError("config.json: no such file in the archive; pack a folder saved by save_pretrained")
        transformers_logging.disable_progress_bar()  # type: ignore[no-untyped-call]  # a worker's stderr is a log
        model, about = self.from_folder("model", auto_class, output_loading_info=True)
        missing = self.missing_weights = sorted(about["missing_keys"])
        if complete and missing:
            more = f" and {len(missing) - 3} more" if len(missing) > 3 else ""
            raise LoadError(
                f"the folder has no weights for {', '.join(missing[:3])}{more} of {type(model).__name__}; "
                f"train and save the model for {self.task}, or choose the task that it was saved for"
            )
        return model.to(self.device)

    def from_folder(self, what: str, auto_class: Any, **options: Any) -> Any:
        """``auto_class.from_pretrained`` on the archive, without a network.

        Args:
            what: its name in a message: model, tokenizer, image processor ...
            auto_class: one of transformers' Auto classes.
            options: passed on.

        Raises:
            LoadError: what transformers said, in one line.
        """
        try:
            return auto_class.from_pretrained(
                self.model_dir, trust_remote_code=self.settings.trust_remote_code, local_files_only=True, **options
            )
        except Exception as error:  # transformers raises many kinds
            raise LoadError(f"the {what} cannot be loaded from the archive: {first_line(error)}") from error

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
