"""A client of TorchServe's management API that works around its pitfalls.

It uses query parameters only, because a JSON body without max_batch_delay turns batching off
(frontend/server/.../http/messages/RegisterModelRequest.java). To wait for a model it polls the workers, because
``/ping`` reports Healthy for 300 seconds while a model fails to load.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, urlsplit

import httpx

from tsbatch.errors import ServerError, TsbatchError, UsageError
from tsbatch.serving.api_errors import is_race, is_token_error, message_of
from tsbatch.serving.load_failure import load_failed
from tsbatch.serving.tokens import FixedToken, TokenSource
from tsbatch.serving.worker_log import Reason, WorkerLog
from tsbatch.system.polling import wait_until

if TYPE_CHECKING:
    from typing_extensions import Self

Progress = Callable[[str], None]

SECONDS_FOR_PROCESS = 120
"""TorchServe waits two minutes for a worker process to start; only then does the model's startupTimeout count."""

SECONDS_BETWEEN_LOOKS = 0.2
SECONDS_BEFORE_RETRY = 0.5
"""Also the time that a worker's last lines take to reach the log after the line that reports its death."""

SECONDS_FOR_REASON = 12
"""If the lines are lost, the next worker, which TorchServe starts within two seconds, fails for the same reason."""

TRIES = 3

MODELS = "/models"
TOKEN_API = "/token"  # noqa: S105 - an address
LOOPBACK = {"127.0.0.1", "localhost", "::1"}
READY = "READY"


@dataclass(frozen=True, slots=True, order=True)
class ModelVersion:
    """A model by its name and version."""

    name: str
    version: str

    def __str__(self) -> str:
        return f"{self.name} {self.version}"


class ModelNotFound(UsageError):
    """The server has no such model or version."""


class Management:
    """The management API of one server.

    Args:
        address: as ``http://127.0.0.1:8081``.
        tokens: source of the management token.
        log_dir: the server's log folder, if it is on this machine; failures then include the worker's error.

    Attributes:
        is_local: whether the server is on this machine.
    """

    def __init__(self, address: str, tokens: TokenSource | None = None, *, log_dir: Path | None = None) -> None:
        self.address = address.rstrip("/")
        self.is_local = urlsplit(address).hostname in LOOPBACK
        self.log_dir = log_dir
        self._tokens = tokens or FixedToken(None)
        # A local server needs no proxy and may have a self-signed certificate. Connections are not kept open: calls are
        # rare, and a client that is never closed then leaks none.
        self._client = httpx.Client(
            base_url=self.address,
            trust_env=not self.is_local,
            verify=not self.is_local,
            limits=httpx.Limits(max_keepalive_connections=0),
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections."""
        self._client.close()

    def models(self) -> dict[str, str]:
        """Return the registered models and the archive of each."""
        found: dict[str, str] = {}
        page: str | None = "0"
        while page is not None:
            answer = self._call("GET", MODELS, limit=100, next_page_token=page)
            found.update((model["modelName"], model["modelUrl"]) for model in answer["models"])
            page = answer.get("nextPageToken")
        return found

    def describe(self, name: str, version: str | None = None, *, customized: bool = False) -> dict[str, Any]:
        """Describe one version of a model, or its default version: effective settings and workers.

        Raises:
            ModelNotFound: the server has no such model or version.
            ServerError: the server fails or cannot be reached.
        """
        found: list[dict[str, Any]] = self._call("GET", path_of(name, version), customized=customized or None)
        return found[0]

    def versions(self, name: str) -> list[dict[str, Any]]:
        """Describe every version of a model."""
        found: list[dict[str, Any]] = self._call("GET", path_of(name, "all"))
        return found

    def every_version(self) -> Iterator[dict[str, Any]]:
        """Describe every version of every model."""
        for name in self.models():
            yield from self.versions(name)

    def register(
        self, url: str, *, model_name: str | None = None, synchronous: bool = True, **settings: int | None
    ) -> None:
        """Register an archive.

        Args:
            url: a name in the model store or a URL.
            model_name: the name to serve it under; the archive's own by default.
            synchronous: wait for its workers.
            settings: ``initial_workers``, ``batch_size``, ``max_batch_delay`` (ms), ``response_timeout`` and
                ``startup_timeout`` (s).

        Raises:
            UsageError: the server rejects the archive or the values.
            ServerError: the server cannot be reached, or its workers do not start.
        """
        seconds, flag = None if synchronous else 600, str(synchronous).lower()
        self._call("POST", MODELS, seconds=seconds, url=url, model_name=model_name, synchronous=flag, **settings)

    def scale(
        self,
        name: str,
        workers: int,
        version: str | None = None,
        *,
        max_workers: int | None = None,
        synchronous: bool = True,
    ) -> None:
        """Set a model's number of workers, and its maxWorkers if that is to be different.

        Raises:
            ModelNotFound: the server has no such model or version.
            ServerError: the server fails or cannot be reached.
        """
        if workers == 0:
            self._leave_one(name, version)
        self._call(
            "PUT",
            path_of(name, version),
            seconds=None if synchronous else 60,
            min_worker=workers,
            max_worker=workers if max_workers is None else max_workers,
            synchronous=str(synchronous).lower(),
        )

    def set_default(self, name: str, version: str) -> None:
        """Make this the version for requests that name none.

        Raises:
            ModelNotFound: the server has no such model or version.
            ServerError: the server fails or cannot be reached.
        """
        self._call("PUT", f"{path_of(name, version)}/set-default")

    def unregister(self, name: str, version: str | None = None) -> None:
        """Unregister one version of a model, or its default version.

        Raises:
            ModelNotFound: the server has no such model or version.
            ServerError: the server fails or cannot be reached.
        """
        if not self._is_protected(name, version):
            self._leave_one(name, version)
        self._call("DELETE", path_of(name, version), seconds=300)

    def _is_protected(self, name: str, version: str | None) -> bool:
        """Whether it is the default one of several versions, which TorchServe refuses to unregister."""
        with suppress(TsbatchError):  # the next call reports what is wrong
            default = self.describe(name)["modelVersion"]
            return version in (None, default) and len(self.versions(name)) > 1
        return False

    def _leave_one(self, name: str, version: str | None) -> None:
        """Scale down to one worker before the last one is ended.

        To end all workers, TorchServe drops their list while it iterates over it; an error in the middle would leave
        the others running (frontend/server/.../wlm/WorkLoadManager.java).
        """
        with suppress(TsbatchError):  # the next call reports what is wrong
            if len(self.describe(name, version)["workers"]) > 1:
                self.scale(name, 1, version, synchronous=False)

    def follow(self) -> WorkerLog | None:
        """Follow the server's logs from now on, if they are on this machine."""
        return WorkerLog(self.log_dir, from_now=True) if self.log_dir else None

    def wait_ready(
        self,
        name: str,
        version: str | None = None,
        *,
        timeout: float | None = None,
        on_progress: Progress | None = None,
        log: WorkerLog | None = None,
    ) -> dict[str, Any]:
        """Wait until a model has all its workers, and describe it.

        Args:
            name: the model.
            version: its version; the default one if None.
            timeout: seconds to wait; by default as long as TorchServe itself waits.
            on_progress: called with a line about the current step.
            log: the logs, followed since before the workers started, which report failures at once.

        Raises:
            LoadFailed: a worker died; with the cause and what to do.
            ServerError: the time is up.
        """
        tell = on_progress or (lambda _: None)
        begin = time.monotonic()
        while True:
            model = self.describe(name, version)
            ready, wanted = ready_workers(model), model["minWorkers"]
            model_version = ModelVersion(name, model["modelVersion"])
            if ready == wanted == len(model["workers"]):
                tell(f"{model_version}: {wanted} workers READY")
                return model
            ids = {str(worker.get("id")) for worker in model["workers"]}
            if log is not None and log.died(model_version.name, model_version.version, ids):
                raise load_failed(str(model_version), cause_of_death(log, model_version, ids), model)
            allowed = timeout if timeout is not None else SECONDS_FOR_PROCESS + model.get("startupTimeout", 120) + 10
            if time.monotonic() - begin > allowed:
                raise ServerError(
                    f"the model {model_version} has only {ready} of {wanted} workers READY after {allowed:.0f} s"
                )
            tell(f"loading {model_version}: {ready} of {wanted} workers READY")
            time.sleep(SECONDS_BETWEEN_LOOKS)

    def _call(self, method: str, path: str, *, seconds: float | None = 60, **query: Any) -> Any:
        params = {key: value for key, value in query.items() if value is not None}
        answer = self._send(method, path, params, seconds)
        if is_token_error(answer):
            # The token was renewed after it was read and before the server checked it.
            time.sleep(SECONDS_BEFORE_RETRY)
            answer = self._send(method, path, params, seconds)
        for _ in range(TRIES - 1):
            # After an error in the middle, the same version cannot be registered again.
            if method == "POST" or not is_race(answer):
                break
            time.sleep(SECONDS_BEFORE_RETRY)
            answer = self._send(method, path, params, seconds)
            if method == "DELETE" and answer.status_code == httpx.codes.NOT_FOUND:
                return None  # the first try did unregister it
        if answer.is_success:
            return answer.json()
        raise self._error(answer)

    def _send(self, method: str, path: str, params: Mapping[str, Any], seconds: float | None) -> httpx.Response:
        token = self._tokens.token("management")
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        try:
            return self._client.request(method, path, params=params, headers=headers, timeout=seconds)
        except httpx.TimeoutException as error:
            raise ServerError(f"the server at {self.address} did not answer {method} {path} in {seconds} s") from error
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            raise ServerError(f"cannot reach the server at {self.address}: {error}") from error

    def _error(self, answer: httpx.Response) -> Exception:
        message = message_of(answer)
        if is_token_error(answer) and TOKEN_API in str(answer.request.url):
            return UsageError(
                f"TorchServe treats every address with {TOKEN_API!r} in it as its token API "
                "(TokenAuthorizationHandler.java): give the model a name that does not start with 'token'"
            )
        if is_token_error(answer):
            return UsageError(f"the server at {self.address} rejects the management token; set TSBATCH_TOKEN")
        if answer.status_code == httpx.codes.NOT_FOUND and answer.request.url.path == MODELS:
            return UsageError(f"{self.address} is not TorchServe's management address: it has no {MODELS}")
        if answer.status_code == httpx.codes.NOT_FOUND:
            return ModelNotFound(f"{message}; the server has: {', '.join(sorted(self.models())) or 'no model'}")
        if answer.status_code == httpx.codes.METHOD_NOT_ALLOWED:
            return ServerError(f"{message}; the server was started without enable_model_api=true")
        if answer.is_client_error:
            return UsageError(message)
        if is_race(answer) and answer.request.method != "POST":
            return ServerError(f"TorchServe failed while a worker was starting or ending ({message}); try again")
        return ServerError(message)


def cause_of_death(log: WorkerLog, model_version: ModelVersion, ids: Collection[str] | None = None) -> Reason:
    """Wait until the log has the reason for a worker's death, and return it."""
    time.sleep(SECONDS_BEFORE_RETRY)
    wait_until(
        lambda: log.reason(model_version.name, model_version.version, ids).certain,
        SECONDS_FOR_REASON,
        interval=SECONDS_BETWEEN_LOOKS,
    )
    return log.reason(model_version.name, model_version.version, ids)


def path_of(name: str, version: str | None = None) -> str:
    """Return the URL path of a model or one version of it, with special characters escaped."""
    return f"{MODELS}/" + "/".join(quote(part, safe="") for part in (name, version) if part is not None)


def ready_workers(model: Mapping[str, Any]) -> int:
    """Count the READY workers of a described model."""
    return sum(worker["status"] == READY for worker in model["workers"])


def models_of(management: Management) -> list[dict[str, Any]]:
    """Summarize every version of every model for the command line."""
    return [summary(model) for model in management.every_version()]


def summary(model: Mapping[str, Any]) -> dict[str, Any]:
    """Summarize a described model under tsbatch's own keys; ``workers`` counts the READY ones."""
    ready, wanted = ready_workers(model), model["minWorkers"]
    status = "NO WORKERS" if wanted == 0 else "READY" if ready >= wanted else "LOADING"
    return {
        "name": model["modelName"],
        "version": model["modelVersion"],
        "workers": ready,
        "wanted_workers": wanted,
        "batch_size": model["batchSize"],
        "max_batch_delay": model["maxBatchDelay"],
        "status": status,
    }
