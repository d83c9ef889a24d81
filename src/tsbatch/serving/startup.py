"""Start TorchServe step by step; a failure undoes the steps before it."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
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
from tsbatch.system.polling import wait_until
from tsbatch.system.processes import ProcessRef, end_marked, own_process

MAX_TEMP_LENGTH = 80
"""In bytes: a worker's socket is ``<temp>/.ts.sock.<port>``, and a Unix socket's path is limited to 107 bytes."""


class Start:
    """One start of a server, with the arguments of ``Server.start``.

    Raises:
        UsageError: a name or a file is wrong, or Java is missing; nothing has been created then.
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
        """Start the server and return when all models are READY.

        Args:
            timeout: seconds until TorchServe must respond.

        Raises:
            UsageError: an archive is not in the model store.
            ServerError: TorchServe does not start, or a model cannot load.
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
        self._wait_until_responding(instance, self.process, timeout)
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
            raise UsageError(f"{source.path} is not in the model store {self.store}; move it there, or omit the store")
        file = source.path.name if inside else source.link_into(self.store)
        return f"{source.alias}={file}" if source.alias else file

    def _instance(self, process: subprocess.Popen[bytes]) -> Instance:
        return Instance(
            name=self.name,
            process=ProcessRef.of(process.pid),
            owner=own_process(),
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

    def _wait_until_responding(self, instance: Instance, process: subprocess.Popen[bytes], timeout: float) -> None:
        failures: list[ServerError] = []

        def responding() -> bool:
            if process.poll() is not None:
                raise ServerError(f"TorchServe ended while starting: {java_command.error_in_console(self.log_dir)}")
            try:
                management.models()
            except ServerError as error:
                failures[:] = [error]
                return False
            return True

        with instance.management() as management:
            if not wait_until(responding, timeout):
                raise ServerError(f"TorchServe does not respond: {failures[0]}") from failures[0]

    def _wait_for_models(self, instance: Instance, log: WorkerLog) -> None:
        with instance.management() as management:
            registered = management.models()
            for source in self.sources:
                if source.name not in registered:
                    cause = log.rejected().get(source.path.name, f"see {self.log_dir / 'ts_log.log'}")
                    advice = "; ".join(filter(None, (cause, remedy(cause))))
                    raise ServerError(f"TorchServe rejected {source.path.name}: {advice}")
            try:
                for model in list(management.every_version()):
                    management.wait_ready(model["modelName"], model["modelVersion"], on_progress=self.tell, log=log)
            except LoadFailed as failure:
                # As in registration: TorchServe itself would keep trying for 300 seconds.
                archive = next((one.path for one in self.sources if failure.who == f"{one.name} {one.version}"), None)
                raise with_archive(failure, archive, "the server is stopped") from None


def _chosen_store(model_store: Path | None, values: ServerProperties) -> Path | None:
    chosen = model_store or (Path(values["model_store"]) if "model_store" in values else None)
    if chosen is not None and not chosen.is_dir():
        raise UsageError(f"the model store {chosen} is not a folder")
    return chosen.absolute() if chosen else None


def _work_folder() -> Path:
    folder = Path(tempfile.mkdtemp(prefix=WORK_PREFIX)).resolve()
    short = Path("/tmp")  # noqa: S108 - mkdtemp makes a folder that only its owner can enter
    if len(os.fsencode(folder)) > MAX_TEMP_LENGTH and short.is_dir():
        folder.rmdir()
        folder = Path(tempfile.mkdtemp(prefix=WORK_PREFIX, dir=short)).resolve()
    return folder
