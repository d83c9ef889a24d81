"""A client of TorchServe's management API that knows what its answers are worth.

It uses query parameters only: a JSON body without max_batch_delay turns batching off
(frontend/server/.../http/messages/RegisterModelRequest.java). It waits by looking at the workers, since
``/ping`` says Healthy for 300 seconds while a model cannot load.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, urlsplit

import httpx

from tsbatch.errors import ServerError, TsbatchError, UsageError
from tsbatch.serving.api_errors import is_stumble, is_token_error, message_of
from tsbatch.serving.load_failure import load_failed
from tsbatch.serving.tokens import FixedToken, TokenSource
from tsbatch.serving.worker_log import Reason, WorkerLog

if TYPE_CHECKING:
    from typing_extensions import Self

Progress = Callable[[str], None]

SECONDS_FOR_PROCESS = 120
"""TorchServe gives a worker's process two minutes to come up, before the model's startupTimeout counts."""

SECONDS_BETWEEN_LOOKS = 0.2
SECONDS_FOR_LAST_WORDS = 0.5
"""A worker's last lines reach the log shortly after the line that says it died."""

SECONDS_FOR_REASON = 12
"""When they do not, the next worker says why; TorchServe starts it within two seconds."""

TRIES = 3

MODELS = "/models"
RESERVED = "/token"
HERE = {"127.0.0.1", "localhost", "::1"}
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
        tokens: where the management token comes from.
        log_dir: the server's log folder, when it is on this machine; failures then come with the worker's reason.

    Attributes:
        here: whether the server is on this machine.
    """

    def __init__(self, address: str, tokens: TokenSource | None = None, *, log_dir: Path | None = None) -> None:
        self.address = address.rstrip("/")
        self.here = urlsplit(address).hostname in HERE
        self.log_dir = log_dir
        self._tokens = tokens or FixedToken(None)
        # A proxy of the environment is for other machines, and a certificate for this one is signed by its user.
        # No connection is kept: calls are rare, and a client that nobody closes leaves nothing open then.
        self._client = httpx.Client(
            base_url=self.address,
            trust_env=not self.here,
            verify=not self.here,
            limits=httpx.Limits(max_keepalive_connections=0),
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections."""
        self._client.close()

    def models(self) -> dict[str, str]:
        """The registered models: name and the archive each came from."""
        found: dict[str, str] = {}
        page: str | None = "0"
        while page is not None:
            answer = self._call("GET", MODELS, limit=100, next_page_token=page)
            found.update((model["modelName"], model["modelUrl"]) for model in answer["models"])
            page = answer.get("nextPageToken")
        return found

    def describe(self, name: str, version: str | None = None, *, customized: bool = False) -> dict[str, Any]:
        """One version of a model, the default one when none is named: effective settings and workers.

        Raises:
            ModelNotFound: when the server has no such model or version.
            ServerError: when the server cannot be reached or fails.
        """
        found: list[dict[str, Any]] = self._call("GET", path_of(name, version), customized=customized or None)
        return found[0]

    def versions(self, name: str) -> list[dict[str, Any]]:
        """Every version of a model, described."""
        found: list[dict[str, Any]] = self._call("GET", path_of(name, "all"))
        return found

    def every_version(self) -> Iterator[dict[str, Any]]:
        """Every version of every model, described."""
        for name in self.models():
            yield from self.versions(name)

    def register(
        self,
        url: str,
        *,
        model_name: str | None = None,
        initial_workers: int | None = None,
        batch_size: int | None = None,
        max_batch_delay: int | None = None,
        response_timeout: int | None = None,
        startup_timeout: int | None = None,
        synchronous: bool = True,
    ) -> None:
        """Register an archive: a name in the model store or a URL; delays in ms, time-outs in s.

        Raises:
            UsageError: when the server refuses the archive or the values.
            ServerError: when it cannot be reached, or its workers do not start.
        """
        self._call(
            "POST",
            MODELS,
            seconds=None if synchronous else 600,
            url=url,
            model_name=model_name,
            initial_workers=initial_workers,
            batch_size=batch_size,
            max_batch_delay=max_batch_delay,
            response_timeout=response_timeout,
            startup_timeout=startup_timeout,
            synchronous=str(synchronous).lower(),
        )

    def scale(
        self, name: str, workers: int, version: str | None = None, *, most: int | None = None, synchronous: bool = True
    ) -> None:
        """Set the number of workers of a model, and ``most``, its maxWorkers, where that is another number.

        Raises:
            ModelNotFound: when the server has no such model or version.
            ServerError: when the server cannot be reached or fails.
        """
        if workers == 0:
            self._leave_one(name, version)
        self._call(
            "PUT",
            path_of(name, version),
            seconds=None if synchronous else 60,
            min_worker=workers,
            max_worker=workers if most is None else most,
            synchronous=str(synchronous).lower(),
        )

    def set_default(self, name: str, version: str) -> None:
        """Let requests that name no version go to this one.

        Raises:
            ModelNotFound: when the server has no such model or version.
            ServerError: when the server cannot be reached or fails.
        """
        self._call("PUT", f"{path_of(name, version)}/set-default")

    def unregister(self, name: str, version: str | None = None) -> None:
        """Unregister a model's version, the default one when none is named.

        Raises:
            ModelNotFound: when the server has no such model or version.
            ServerError: when the server cannot be reached or fails.
        """
        if not self._stays(name, version):
            self._leave_one(name, version)
        self._call("DELETE", path_of(name, version), seconds=300)

    def _stays(self, name: str, version: str | None) -> bool:
        """Whether it is the default one of several, which TorchServe refuses to drop."""
        with suppress(TsbatchError):  # what is wrong the call that follows tells
            default = self.describe(name)["modelVersion"]
            return version in (None, default) and len(self.versions(name)) > 1
        return False

    def _leave_one(self, name: str, version: str | None) -> None:
        """To end all workers TorchServe forgets their list and walks through it: a stumble would leave the rest alive.

        With one left to end there is no rest (frontend/server/.../wlm/WorkLoadManager.java).
        """
        with suppress(TsbatchError):  # what is wrong the call that follows tells
            if len(self.describe(name, version)["workers"]) > 1:
                self.scale(name, 1, version, synchronous=False)

    def follow(self) -> WorkerLog | None:
        """The server's logs from now on, where they can be read."""
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
            version: its version; the default one when left out.
            timeout: seconds to wait; as long as TorchServe itself waits when left out.
            on_progress: told what is waited for.
            log: the logs, followed since before the workers started; failures show at once with them.

        Raises:
            LoadFailed: when a worker died, with its reason and what to do.
            ServerError: when the time is over.
        """
        tell = on_progress or (lambda _: None)
        begin = time.monotonic()
        while True:
            model = self.describe(name, version)
            ready, wanted = ready_workers(model), model["minWorkers"]
            who = ModelVersion(name, model["modelVersion"])
            if ready == wanted == len(model["workers"]):
                tell(f"{who}: {wanted} workers READY")
                return model
            ids = {str(worker.get("id")) for worker in model["workers"]}
            if log is not None and log.died(who.name, who.version, ids):
                raise load_failed(str(who), last_words(log, who, ids), model)
            allowed = timeout if timeout is not None else SECONDS_FOR_PROCESS + model.get("startupTimeout", 120) + 10
            if time.monotonic() - begin > allowed:
                raise ServerError(f"the model {who} has {ready} of {wanted} workers READY after {allowed:.0f} s")
            tell(f"loading {who}: {ready} of {wanted} workers READY")
            time.sleep(SECONDS_BETWEEN_LOOKS)

    def _call(self, method: str, path: str, *, seconds: float | None = 60, **query: Any) -> Any:
        params = {key: value for key, value in query.items() if value is not None}
        answer = self._send(method, path, params, seconds)
        if is_token_error(answer):
            # The token was renewed between our reading it and the server's.
            time.sleep(SECONDS_FOR_LAST_WORDS)
            answer = self._send(method, path, params, seconds)
        for _ in range(TRIES - 1):
            # A version that was registered half cannot be registered again.
            if method == "POST" or not is_stumble(answer):
                break
            time.sleep(SECONDS_FOR_LAST_WORDS)
            answer = self._send(method, path, params, seconds)
            if method == "DELETE" and answer.status_code == httpx.codes.NOT_FOUND:
                return None  # it is gone all the same
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
        said = message_of(answer)
        if is_token_error(answer) and RESERVED in str(answer.request.url):
            return UsageError(
                f"TorchServe takes every address with {RESERVED!r} in it for its token API "
                "(TokenAuthorizationHandler.java): give the model a name that does not begin with 'token'"
            )
        if is_token_error(answer):
            return UsageError(f"the server at {self.address} does not take the management token; set TSBATCH_TOKEN")
        if answer.status_code == httpx.codes.NOT_FOUND and answer.request.url.path == MODELS:
            return UsageError(f"{self.address} is not TorchServe's management address: it has no {MODELS}")
        if answer.status_code == httpx.codes.NOT_FOUND:
            return ModelNotFound(f"{said}; the server has: {', '.join(sorted(self.models())) or 'no model'}")
        if answer.status_code == httpx.codes.METHOD_NOT_ALLOWED:
            return ServerError(f"{said}; the server was started without enable_model_api=true")
        if answer.is_client_error:
            return UsageError(said)
        if is_stumble(answer) and answer.request.method != "POST":
            return ServerError(f"TorchServe tripped over its own workers ({said}); do the same again")
        return ServerError(said)


def last_words(log: WorkerLog, who: ModelVersion, ids: Collection[str] | None = None) -> Reason:
    """Why a worker died, as soon as the log says it."""
    deadline = time.monotonic() + SECONDS_FOR_REASON
    time.sleep(SECONDS_FOR_LAST_WORDS)
    while not (reason := log.reason(who.name, who.version, ids)).certain and time.monotonic() < deadline:
        time.sleep(SECONDS_BETWEEN_LOOKS)
    return reason


def path_of(name: str, version: str | None = None) -> str:
    """The path of a model or one version of it, for names with any characters."""
    return f"{MODELS}/" + "/".join(quote(part, safe="") for part in (name, version) if part is not None)


def ready_workers(model: Mapping[str, Any]) -> int:
    """How many workers of a described model are READY."""
    return sum(worker["status"] == READY for worker in model["workers"])


def models_of(management: Management) -> list[dict[str, Any]]:
    """Every version of every model, as the command line shows it."""
    return [summary(model) for model in management.every_version()]


def summary(model: Mapping[str, Any]) -> dict[str, Any]:
    """A described model by our own words: ``workers`` counts those that are READY."""
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
