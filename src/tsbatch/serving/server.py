"""A TorchServe managed by tsbatch: one Java process with its workers, in a private folder that is removed at the end.

::

    with Server.start(models=[Path("model_store/embed.mar")]) as server:
        httpx.post(f"{server.inference_address}/predictions/embed", headers=server.headers("inference"), …)
"""

from __future__ import annotations

import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
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
"""Java's error if another program took a port after it was chosen."""
MAX_STARTS = 3
"""How often to start, with other ports, in that case."""


class Server:
    """A running TorchServe, stopped with all its processes at the end of the ``with`` block.

    Args:
        instance: the server as described by its state file.
        process: its Java process, a child of this one.
        keeper: the thread that renews its tokens.
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
        """Start TorchServe and return when its models are READY.

        Args:
            model_store: its model store; a private folder by default.
            models: archives to load, as paths or as ``NAME=FILE``; ``["all"]`` for the whole model store.
            name: name of the instance.
            config: a config.properties, whose settings take precedence.
            properties: settings that override it.
            env: environment variables for Java and the workers, in addition to this process's own.
            log_dir: folder for its logs; by default in its work folder, which is removed at the end.
            timeout: seconds until the server responds, without loading the models.
            on_progress: called with a line about the current step.

        Raises:
            UsageError: a file, name or address is wrong, or Java is missing.
            ServerError: the server does not start, or a model cannot load.
        """
        for tries_left in reversed(range(MAX_STARTS)):
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
        """As ``http://127.0.0.1:8082``; this address needs no token."""
        return self.instance.metrics_address

    @property
    def grpc_inference_address(self) -> str:
        """As ``127.0.0.1:7070``."""
        return self.instance.grpc_inference_address

    @property
    def inference_token(self) -> str | None:
        """The valid inference token; None without token authorization."""
        return self.instance.tokens.token("inference")

    @property
    def management_token(self) -> str | None:
        """The valid management token; None without token authorization."""
        return self.instance.tokens.token("management")

    @property
    def log_dir(self) -> Path:
        """Folder of TorchServe's logs."""
        return self.instance.log_dir

    @property
    def pid(self) -> int:
        """Process id of the Java process."""
        return self.instance.process.pid

    def headers(self, kind: TokenType = "inference") -> dict[str, str]:
        """Return the current ``Authorization`` header; empty without token authorization."""
        token = self.instance.tokens.token(kind)
        return {"Authorization": f"Bearer {token}"} if token else {}

    def management(self) -> Management:
        """Open a client of its management API."""
        return self.instance.management()

    def running(self) -> bool:
        """Whether the Java process is running."""
        return self.exit_code is None

    @property
    def exit_code(self) -> int | None:
        """Java's exit code, or the negative number of the signal that ended it; None while it is running."""
        return self._process.poll()

    def detach(self) -> Instance:
        """Leave the server running with a token keeper process; do not use this object afterwards."""
        self._keeper.stop()
        self.instance = self.instance.detach_to(spawn(self.instance.name))
        self._process.returncode = 0  # Java outlives this process on purpose; without this, subprocess would warn
        return self.instance

    def stop(self) -> None:
        """Stop the server with all its processes and remove its folder; calling it twice is harmless.

        Raises:
            KeyboardInterrupt: Ctrl-C was pressed meanwhile; the server is stopped all the same.
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

    def __exit__(self, *_: object) -> None:
        self.stop()
