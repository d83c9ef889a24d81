"""One start of TorchServe, step by step; a failure undoes what was made so far."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from tsbatch.archive.model_store import ALL, ModelSource, sources_of
from tsbatch.configuration.server_properties import ServerProperties
from tsbatch.errors import LoadFailed, ServerError, UsageError
from tsbatch.serving import instance as instances
from tsbatch.serving import java_command
from tsbatch.serving.instance import WORK_PREFIX, Instance
from tsbatch.serving.java_runtime import find_java
from tsbatch.serving.load_failure import with_archive
from tsbatch.serving.load_remedies import remedy
from tsbatch.serving.management_client import Progress
from tsbatch.serving.token_keeper import Keeper
from tsbatch.serving.worker_log import WorkerLog
from tsbatch.system.processes import ProcessRef, end_marked

LONGEST_TEMP = 80
"""A worker's socket is ``<temp>/.ts.sock.<port>``, and the path of a Unix socket has at most 107 bytes."""

SECONDS_BETWEEN_LOOKS = 0.1


class Start:
    """What has been made so far. The arguments are those of ``Server.start``.

    Raises:
        UsageError: when a name, a file or Java is not right; nothing was made then.
    """

    def __init__(
        self,
        *,
        name: str,
        config: Path | None,
        properties: Mapping[str, str],
        model_store: Path | None,
        models: Sequence[Path | str],
        env: Mapping[str, str],
        log_dir: Path | None,
        tell: Progress,
    ) -> None:
        if instances.running_here(name):
            raise UsageError(f"a server named {name!r} is running; stop it with: tsbatch stop --name {name}")
        self.name = name
        self.env = env
        self.tell = tell
        self.values = ServerProperties.read(config)
        self.values.update(properties)
        self.whole_store = [str(model).lower() for model in models] == [ALL]
        self.sources = [] if self.whole_store else [ModelSource.parse(model) for model in models]
        chosen = _chosen_store(model_store, self.values)
        self.values.complete()
        self.java = find_java()
        self.work_dir = _work_folder()
        self.private = chosen is None
        self.store = chosen or self.work_dir / "store"
        self.temp_dir = self.work_dir / "tmp"
        self.log_dir = (log_dir or Path(os.environ.get("LOG_LOCATION") or self.work_dir / "logs")).absolute()
        self.process: subprocess.Popen[bytes] | None = None
        self.keeper: Keeper | None = None

    def run(self, timeout: float) -> tuple[Instance, subprocess.Popen[bytes], Keeper]:
        """Start, and return when everything is READY.

        Args:
            timeout: seconds until TorchServe must answer.

        Raises:
            UsageError: when an archive does not lie where it must.
            ServerError: when TorchServe does not start, or a model cannot load.
        """
        try:
            return self._run(timeout)
        except BaseException:
            self._undo()
            raise

    def _run(self, timeout: float) -> tuple[Instance, subprocess.Popen[bytes], Keeper]:
        for folder in (self.temp_dir, self.log_dir, self.store):
            folder.mkdir(parents=True, exist_ok=True)
        self._prepare_store()
        self.values.write(self.work_dir / java_command.CONFIG_FILE)
        log = WorkerLog(self.log_dir, from_now=True)
        self.tell("starting TorchServe")
        self.process = java_command.run(
            java_command.command(self.java, self.values, self.work_dir, self.temp_dir),
            self.work_dir,
            self.log_dir,
            java_command.environment(self.work_dir, self.temp_dir, self.log_dir, self.env),
        )
        instance = self._instance(self.process)
        instance.save()
        self._wait_until_it_answers(instance, self.process, time.monotonic() + timeout)
        instance.keys.renew()
        self.keeper = Keeper(instance)
        self._wait_for_models(instance, log)
        return instance, self.process, self.keeper

    def _undo(self) -> None:
        if self.keeper is not None:
            self.keeper.stop()
        if self.process is not None:
            self.process.kill()
            self.process.wait()
        end_marked(str(self.work_dir))
        shutil.rmtree(self.work_dir, ignore_errors=True)
        saved = instances.load(self.name)
        if saved is not None and saved.work_dir == self.work_dir:
            saved.forget()

    def _prepare_store(self) -> None:
        self.values["model_store"] = str(self.store)
        if self.whole_store:
            self.values["load_models"] = ALL
        elif self.sources:
            self.values["load_models"] = ",".join(map(self._entry, self.sources))
        self.sources = sources_of(self.values.get("load_models", ""), self.store)

    def _entry(self, source: ModelSource) -> str:
        inside = source.path.parent.resolve() == self.store.resolve()
        if not inside and not self.private:
            raise UsageError(f"{source.path} is not in the model store {self.store}; move it there, or name no store")
        file = source.path.name if inside else source.link_into(self.store)
        return f"{source.alias}={file}" if source.alias else file

    def _instance(self, process: subprocess.Popen[bytes]) -> Instance:
        return Instance(
            name=self.name,
            process=ProcessRef.of(process.pid),
            owner=instances.own_process(),
            work_dir=self.work_dir,
            log_dir=self.log_dir,
            model_store=self.store,
            private_store=self.private,
            token_lifetime=self.values.token_lifetime if self.values.token_authorization else 0,
            inference_address=self.values.address("inference_address"),
            management_address=self.values.address("management_address"),
            metrics_address=self.values.address("metrics_address"),
            grpc_inference_address=self.values.address("grpc_inference_address"),
        )

    def _wait_until_it_answers(self, instance: Instance, process: subprocess.Popen[bytes], deadline: float) -> None:
        with instance.management() as management:
            while True:
                if process.poll() is not None:
                    raise ServerError(f"TorchServe ended while starting: {java_command.last_words(self.log_dir)}")
                try:
                    management.models()
                except ServerError as error:
                    if time.monotonic() > deadline:
                        raise ServerError(f"TorchServe does not answer: {error}") from error
                else:
                    return
                time.sleep(SECONDS_BETWEEN_LOOKS)

    def _wait_for_models(self, instance: Instance, log: WorkerLog) -> None:
        with instance.management() as management:
            there = management.models()
            for source in self.sources:
                if source.name not in there:
                    why = log.refused().get(source.path.name, f"see {self.log_dir / 'ts_log.log'}")
                    what = "; ".join(filter(None, (why, remedy(why))))
                    raise ServerError(f"TorchServe did not take {source.path.name}: {what}")
            try:
                for model in list(management.every_version()):
                    management.wait_ready(model["modelName"], model["modelVersion"], on_progress=self.tell, log=log)
            except LoadFailed as failure:
                # As in registration: TorchServe itself would go on trying for 300 seconds.
                archive = next((one.path for one in self.sources if failure.who == f"{one.name} {one.version}"), None)
                raise with_archive(failure, archive, "the server is stopped") from None


def _chosen_store(model_store: Path | None, values: ServerProperties) -> Path | None:
    chosen = model_store or (Path(values["model_store"]) if "model_store" in values else None)
    if chosen is not None and not chosen.is_dir():
        raise UsageError(f"the model store {chosen} is no folder")
    return chosen.absolute() if chosen else None


def _work_folder() -> Path:
    folder = Path(tempfile.mkdtemp(prefix=WORK_PREFIX)).resolve()
    short = Path("/tmp")  # noqa: S108 - mkdtemp makes a folder there that only we can enter
    if len(os.fsencode(folder)) > LONGEST_TEMP and short.is_dir():
        folder.rmdir()
        folder = Path(tempfile.mkdtemp(prefix=WORK_PREFIX, dir=short)).resolve()
    return folder
