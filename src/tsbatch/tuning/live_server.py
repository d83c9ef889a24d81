"""The server in use as the place where settings are measured: it gets back what it had, whatever happens."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Mapping
from dataclasses import replace
from types import TracebackType
from typing import TYPE_CHECKING, Any

from tsbatch.errors import ServerError, TsbatchError, UsageError
from tsbatch.operations import rollback
from tsbatch.operations.reconfiguration import changing, files_of
from tsbatch.serving.in_flight_requests import pinned
from tsbatch.serving.instance import Instance
from tsbatch.serving.management_client import Management, ModelVersion
from tsbatch.system.console import say
from tsbatch.tuning.measurement import Bench, refused
from tsbatch.tuning.observation import Observation
from tsbatch.tuning.private_server import FOLDER, Tell, config_in, timeouts_of
from tsbatch.tuning.search_space import ModelSettings
from tsbatch.tuning.tuner import Refused

if TYPE_CHECKING:
    from typing_extensions import Self


class LiveServer:
    """The server in use; used as a context manager, which puts its settings back whatever happens.

    Args:
        instance: the server.
        model: the model on it.
        bench: how to measure.
        tell: told what is being done.

    Attributes:
        config: the model's own model-config.yaml with the time-outs that hold, inside the ``with`` block.
    """

    def __init__(self, instance: Instance, model: str, bench: Bench, tell: Tell = lambda _: None) -> None:
        self._instance, self._model, self._bench, self._tell = instance, model, bench, tell
        self._before: rollback.SavedSettings | None = None
        self._open = contextlib.ExitStack()
        self.config: dict[str, Any] = {}

    def __enter__(self) -> Self:
        with self._open, self._instance.management() as management:
            described = management.describe(self._model)
            left = self._left(management)
            self._open.enter_context(changing(self._instance, self._model))
            self._warn(described["modelVersion"])
            self.config = self._config(described)
            now = rollback.SavedSettings.now(management, self._instance, self._model)
            # What a killed tuner found is what has to come back, not what it left.
            self._before = now if left is None else replace(left, tuner=now.tuner)
            rollback.save(self._instance, self._before)
            self._open = self._open.pop_all()
        return self

    def _left(self, management: Management) -> rollback.SavedSettings | None:
        """What a killed tuner found and did not put back."""
        left = rollback.saved(self._instance)
        if left is None:
            return None
        if left.tuner.running():
            raise UsageError(f"a tuning of {left.model} runs already (process {left.tuner.pid})")
        if left.model != self._model:
            raise UsageError(f"a tuning of {left.model} was killed; first run: tsbatch tune --restore")
        if others := rollback.taken_over(management, left):
            say(f"note: {others}")
            return None
        return left

    def _warn(self, version: str) -> None:
        """Of what is not put back: the version's name.

        Raises:
            UsageError: there are clients that it would cost their answers.
        """
        if count := pinned(self._instance.log_dir, ModelVersion(self._model, version)):
            raise UsageError(
                f"{count} requests in access_log.log named version {version} of {self._model}; with --live the version"
                " changes for good, and they would get 404: tune a private copy, without --live"
            )
        say(
            f"note: with --live the version of {self._model} changes at each step and does not change back; clients"
            f" that name version {version} get 404 from the first step on"
        )

    def _config(self, described: Mapping[str, Any]) -> dict[str, Any]:
        scratch = self._instance.work_dir / f"{FOLDER}-{os.getpid()}"
        with files_of(self._instance, described, scratch) as folder:
            return {**config_in(folder), **timeouts_of(described)}

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with self._open:
            try:
                self._put_back(error)
            except KeyboardInterrupt:  # in the middle of an end that nobody had to ask for
                self._put_back(error)
                raise

    def _put_back(self, error: BaseException | None) -> None:
        assert self._before is not None
        if not self._instance.running():
            rollback.delete(self._instance)
            return
        self._tell("putting back the settings that were found")
        try:
            with self._instance.management() as management:
                others = rollback.restore_settings(management, self._instance, self._before, self._tell)
        except TsbatchError as failure:
            again = "once the server is well run: tsbatch tune --restore"
            raise ServerError(f"{self._before} could not be put back: {failure}; {again}") from failure
        if others and others not in str(error):
            say(f"note: {others}")

    @property
    def start(self) -> ModelSettings:
        """What it had before anybody tuned it, inside the ``with`` block."""
        assert self._before is not None
        return ModelSettings(self._before.workers, self._before.batch_size, self._before.delay)

    def measure(self, settings: ModelSettings) -> Observation:
        """See :class:`tsbatch.tuning.tuner.System`."""
        if settings.threads is not None:
            raise Refused("threads cannot be changed on a server in use")
        assert self._before is not None
        with self._instance.management() as management:
            try:
                others = rollback.taken_over(management, self._before)
                if others is None:
                    applied = (settings.workers, settings.batch_size, settings.delay)
                    rollback.apply_settings(management, self._instance, self._model, *applied, self._tell)
            except UsageError as error:
                raise Refused(str(error)) from error
            except ServerError as error:
                raise refused(self._instance, error) from error
        if others:
            raise ServerError(others)
        return self._bench.run(self._instance, self._model, settings)
