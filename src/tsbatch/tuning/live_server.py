"""Measure on the server in use, and restore its settings in any case."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

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


@contextlib.contextmanager
def live_server(instance: Instance, model: str, bench: Bench, tell: Tell = lambda _: None) -> Iterator[LiveServer]:
    """Tune a model on the server in use, and restore its settings at the end, whatever happens.

    Args:
        instance: the server.
        model: the model on it.
        bench: how to measure.
        tell: called with progress messages.
    """
    with contextlib.ExitStack() as cleanup:
        with instance.management() as management:
            described = management.describe(model)
            left = _left_behind(management, instance, model)
            cleanup.enter_context(changing(instance, model))
            _warn(instance, model, described["modelVersion"])
            with files_of(instance, described, instance.work_dir / f"{FOLDER}-{os.getpid()}") as folder:
                config = {**config_in(folder), **timeouts_of(described)}
            now = rollback.SavedSettings.now(management, instance, model)
            # After a killed tuner, restore the settings that it found, not those that it left.
            before = now if left is None else replace(left, tuner=now.tuner)
            rollback.save(instance, before)
        live = LiveServer(instance, model, bench, tell, config, before)
        cleanup.push(live.restore)
        yield live


def _left_behind(management: Management, instance: Instance, model: str) -> rollback.SavedSettings | None:
    """Return the settings that a killed tuner found and did not restore."""
    left = rollback.saved(instance)
    if left is None:
        return None
    if left.tuner.running():
        raise UsageError(f"a tuning of {left.model} is already running (process {left.tuner.pid})")
    if left.model != model:
        raise UsageError(f"a tuning of {left.model} was killed; first run: tsbatch tune --restore")
    if others := rollback.taken_over(management, left):
        say(f"note: {others}")
        return None
    return left


def _warn(instance: Instance, model: str, version: str) -> None:
    """Warn that the name of the version is not restored.

    Raises:
        UsageError: there are clients that it would cost their answers.
    """
    if count := pinned(instance.log_dir, ModelVersion(model, version)):
        raise UsageError(
            f"{count} requests in access_log.log named version {version} of {model}; with --live the version"
            " changes permanently, and they would get 404; tune a private copy instead, without --live"
        )
    say(
        f"note: with --live the version of {model} changes at each step and does not change back; clients"
        f" that name version {version} get 404 from the first step on"
    )


class LiveServer:
    """A model on the server in use; see :func:`live_server`.

    Attributes:
        config: the model's own model-config.yaml with the timeouts that apply.
    """

    def __init__(
        self,
        instance: Instance,
        model: str,
        bench: Bench,
        tell: Tell,
        config: dict[str, Any],
        before: rollback.SavedSettings,
    ) -> None:
        self._instance, self._model, self._bench, self._tell = instance, model, bench, tell
        self.config, self._before = config, before

    def restore(self, _kind: object, error: BaseException | None, _trace: object) -> None:
        """Restore the settings; an exit callback, so that the error that ended the tuning is known."""
        try:
            self._restore(error)
        except KeyboardInterrupt:  # in the middle of the regular end
            self._restore(error)
            raise

    def _restore(self, error: BaseException | None) -> None:
        if not self._instance.running():
            rollback.delete(self._instance)
            return
        self._tell("restoring the previous settings")
        try:
            with self._instance.management() as management:
                others = rollback.restore_settings(management, self._instance, self._before, self._tell)
        except TsbatchError as failure:
            again = "once the server works again, run: tsbatch tune --restore"
            raise ServerError(f"could not restore {self._before}: {failure}; {again}") from failure
        if others and others not in str(error):
            say(f"note: {others}")

    @property
    def start(self) -> ModelSettings:
        """The settings before the tuning."""
        return ModelSettings(self._before.workers, self._before.batch_size, self._before.delay)

    def measure(self, settings: ModelSettings) -> Observation:
        """See :class:`tsbatch.tuning.tuner.System`."""
        if settings.threads is not None:
            raise Refused("threads cannot be changed on a server in use")
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
