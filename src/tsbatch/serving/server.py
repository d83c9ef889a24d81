"""A TorchServe of our own: one Java process with its workers, in a private folder, of which nothing stays.

::

    with Server.start(models=[Path("model_store/embed.mar")]) as server:
        httpx.post(f"{server.inference_address}/predictions/embed", headers=server.headers("inference"), …)
"""

from __future__ import annotations

import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING

from tsbatch.errors import ServerError
from tsbatch.serving.instance import DEFAULT_NAME, Instance
from tsbatch.serving.management_client import Management, Progress
from tsbatch.serving.startup import Start
from tsbatch.serving.token_keeper import Keeper, spawn
from tsbatch.serving.tokens import TokenType

if TYPE_CHECKING:
    from typing_extensions import Self

__all__ = ["Server", "ServerError"]

PORT_TAKEN = "Failed to bind to address"
"""What Java says when somebody took a port that was free when it was chosen."""
STARTS = 3
"""How often to start with other ports then."""


class Server:
    """A running TorchServe; ends with everything it started when the ``with`` block is left.

    Args:
        instance: the server as its state file describes it.
        process: its Java process, a child of this one.
        keeper: what keeps its tokens fresh.
    """

    def __init__(self, instance: Instance, process: subprocess.Popen[bytes], keeper: Keeper) -> None:
        self.instance = instance
        self._process = process
        self._keeper = keeper

    @classmethod
    def start(
        cls,
        *,
        model_store: Path | None = None,
        models: Sequence[Path | str] = (),
        name: str = DEFAULT_NAME,
        config: Path | None = None,
        properties: Mapping[str, str] | None = None,
        env: Mapping[str, str] | None = None,
        log_dir: Path | None = None,
        timeout: float = 120,
        on_progress: Progress | None = None,
    ) -> Server:
        """Start TorchServe and return when it answers and its models are READY.

        Args:
            model_store: its model store; a private folder when left out.
            models: archives to load, as paths or as ``NAME=FILE``; ``["all"]`` for the whole model store.
            name: name of the instance, to find it again.
            config: a config.properties; what it says holds.
            properties: settings on top of it.
            env: environment variables for Java and the workers, beside this process's own.
            log_dir: where its logs go; into its work folder, and away with it, when left out.
            timeout: seconds until the server answers; loading the models comes on top.
            on_progress: told what is waited for.

        Raises:
            UsageError: when a file, a name, an address or Java is not right.
            ServerError: when the server does not start, or a model cannot load.
        """
        for tries_left in reversed(range(STARTS)):
            start = Start(
                name=name,
                config=config,
                properties=properties or {},
                model_store=model_store,
                models=models,
                env=env or {},
                log_dir=log_dir,
                tell=on_progress or (lambda _: None),
            )
            try:
                return cls(*start.run(timeout))
            except ServerError as error:
                if PORT_TAKEN not in str(error) or not tries_left:
                    raise
        raise AssertionError("the last try returns or raises")

    @property
    def inference_address(self) -> str:
        """As ``http://127.0.0.1:8080``."""
        return self.instance.inference_address

    @property
    def management_address(self) -> str:
        """As ``http://127.0.0.1:8081``."""
        return self.instance.management_address

    @property
    def metrics_address(self) -> str:
        """As ``http://127.0.0.1:8082``; TorchServe asks for no token there."""
        return self.instance.metrics_address

    @property
    def grpc_inference_address(self) -> str:
        """As ``127.0.0.1:7070``."""
        return self.instance.grpc_inference_address

    @property
    def inference_token(self) -> str | None:
        """The inference token that holds now; None without token authorisation."""
        return self.instance.tokens.token("inference")

    @property
    def management_token(self) -> str | None:
        """The management token that holds now; None without token authorisation."""
        return self.instance.tokens.token("management")

    @property
    def log_dir(self) -> Path:
        """Where TorchServe writes its logs."""
        return self.instance.log_dir

    @property
    def pid(self) -> int:
        """Process id of Java."""
        return self.instance.process.pid

    def headers(self, kind: TokenType = "inference") -> dict[str, str]:
        """The ``Authorization`` header for a request now; empty without token authorisation."""
        token = self.instance.tokens.token(kind)
        return {"Authorization": f"Bearer {token}"} if token else {}

    def management(self) -> Management:
        """A client of its management API."""
        return self.instance.management()

    def running(self) -> bool:
        """Whether Java still runs."""
        return self.exit_code is None

    @property
    def exit_code(self) -> int | None:
        """Java's exit code, the negative number of the signal that ended it, or None while it runs."""
        return self._process.poll()

    def detach(self) -> Instance:
        """Leave the server running with a keeper process of its own; this object ends here."""
        self._keeper.stop()
        self.instance = self.instance.detach_to(spawn(self.instance.name))
        # Java goes on; subprocess would warn that nobody waited for it.
        self._process.returncode = 0
        return self.instance

    def stop(self) -> None:
        """End it with every process it started, and remove its folder; does nothing the second time.

        Raises:
            KeyboardInterrupt: Ctrl-C came meanwhile; all is done by then.
        """
        try:
            self._stop()
        except KeyboardInterrupt:
            self._stop()
            raise

    def _stop(self) -> None:
        self._keeper.stop()
        if self.instance.detached:
            return
        self.instance.stop()
        self._process.wait()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()
