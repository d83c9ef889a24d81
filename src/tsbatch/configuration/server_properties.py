"""The config.properties that a server of ours reads: the user's file, and what we add to it.

What the user's file says holds. We add what it leaves open: addresses on 127.0.0.1 with free ports, the
model API, the Open Inference Protocol, and the metrics that tsbatch's handlers emit.
"""

from __future__ import annotations

import os
import re
from importlib import resources
from pathlib import Path
from urllib.parse import urlsplit

import javaproperties

from tsbatch.configuration.known_settings import ENVIRONMENT
from tsbatch.errors import UsageError
from tsbatch.system.ports import free_ports, is_free

ADDRESSES = ("inference_address", "management_address", "metrics_address")
GRPC_PORTS = ("grpc_inference_port", "grpc_management_port")
YEAR_IN_MINUTES = 365 * 24 * 60
"""How long a token lives when the user's file does not say: a token somebody copied goes on working as long as
the server runs. TorchServe's own default is 60 minutes."""

FILES = (
    "model_store",
    "workflow_store",
    "metrics_config",
    "keystore",
    "certificate_file",
    "private_key_file",
    "plugins_path",
    "cpp_log_config",
)
WORKER_PORTS = 64
REFERENCE = re.compile(r"\$\$([^$]+)\$\$")
EVERYWHERE = {"0.0.0.0": "127.0.0.1", "[::]": "[::1]"}  # noqa: S104 - read from the user's file, never bound by us


class ServerProperties(dict[str, str]):
    """The settings of one server, by their config.properties keys."""

    @classmethod
    def read(cls, path: Path | None) -> ServerProperties:
        """The user's file, with ``$$NAME$$`` and the environment applied as TorchServe would.

        Raises:
            UsageError: when the file cannot be read.
        """
        if path is None:
            return cls()
        try:
            values = cls(javaproperties.loads(path.read_bytes()))
        except OSError as error:
            raise UsageError(f"cannot read {path}: {error.strerror or error}") from error
        except ValueError as error:
            raise UsageError(f"{path} is no .properties file: {error}") from error
        values._expand(path)
        for key in FILES:
            if key in values:
                # As TorchServe does, which would run in the caller's folder; ours runs in the work folder.
                values[key] = str(Path(values[key]).absolute())
        return values

    def _expand(self, path: Path) -> None:
        for key, value in self.items():
            for name in REFERENCE.findall(value):
                if name not in os.environ:
                    raise UsageError(f"{path}: {key} uses the environment variable {name}, which is not set")
            self[key] = REFERENCE.sub(lambda match: os.environ[match[1]], value)
        if self.get("enable_envvars_config", "").lower() == "true":
            # TorchServe lets the environment win then; we must know the addresses it will really use.
            closed = set() if self.get("use_env_allowed_urls", "").lower() == "true" else {"TS_ALLOWED_URLS"}
            names = os.environ.keys() & ENVIRONMENT.keys() - closed
            self.update({ENVIRONMENT[name]: os.environ[name] for name in names})

    def complete(self) -> None:
        """Add what the user left open.

        Raises:
            UsageError: when an address cannot be used, or is taken.
        """
        taken_by_user = [key for key in (*ADDRESSES, *GRPC_PORTS) if key in self]
        self._fill_addresses()
        self.setdefault("enable_model_api", "true")
        self.setdefault("ts_open_inference_protocol", "true")
        if os.name == "nt":
            # TorchServe cannot set the key file's permissions there and deletes it (TokenAuthorization.java).
            self["disable_token_authorization"] = "true"  # noqa: S105 - a switch
        self.setdefault("token_expiration_min", str(YEAR_IN_MINUTES))
        if (metrics := our_metrics()) is not None:
            self.setdefault("metrics_config", str(metrics))
        self._check_addresses(taken_by_user)

    def _fill_addresses(self) -> None:
        free = iter(free_ports(len(ADDRESSES) + len(GRPC_PORTS)))
        for key in ADDRESSES:
            self.setdefault(key, f"http://127.0.0.1:{next(free)}")
        for key in GRPC_PORTS:
            self.setdefault(key, str(next(free)))
        if os.name == "nt" or self.get("use_native_io", "true").lower() == "false":
            # Elsewhere workers talk over Unix sockets in the server's own folder, and their ports are only names.
            self.setdefault("initial_worker_port", str(free_ports(WORKER_PORTS, consecutive=True)[0]))

    def _check_addresses(self, keys: list[str]) -> None:
        for key in ADDRESSES:
            if urlsplit(self[key]).scheme not in {"http", "https"}:
                raise UsageError(f"{key} is {self[key]}; tsbatch needs an address like http://127.0.0.1:8080")
        if self.token_authorization and self["inference_address"] == self["management_address"]:
            raise UsageError(
                "inference_address and management_address are the same: with token authorisation on, TorchServe wants "
                "both tokens of each call then; give them different ports"
            )
        for key in keys:
            port = int(self[key]) if key in GRPC_PORTS else urlsplit(self[key]).port
            if port and not is_free(port):
                raise UsageError(
                    f"port {port} ({key}) is in use; choose another one, or leave {key} out for a free one"
                )

    @property
    def token_authorization(self) -> bool:
        """Whether the server asks for tokens."""
        return self.get("disable_token_authorization", "false").lower() != "true"

    @property
    def token_lifetime(self) -> float:
        """How long a token lives, in seconds.

        Raises:
            UsageError: when ``token_expiration_min`` is no number.
        """
        try:
            return float(self["token_expiration_min"]) * 60
        except ValueError as error:
            raise UsageError(f"token_expiration_min is {self['token_expiration_min']!r}; expected minutes") from error

    def address(self, key: str) -> str:
        """Where a client on this machine reaches the server, without a slash at the end."""
        if key == "grpc_inference_address":
            host = self.get(key, "127.0.0.1")
            return f"{EVERYWHERE.get(host, host)}:{self['grpc_inference_port']}"
        value = self[key].rstrip("/")
        for host, here in EVERYWHERE.items():
            value = value.replace(f"//{host}:", f"//{here}:")
        return value

    def write(self, path: Path) -> None:
        """Write the file that TorchServe reads."""
        path.write_text(javaproperties.dumps(self, timestamp=False), encoding="ascii")


def our_metrics() -> Path | None:
    """The metrics file that comes with tsbatch and names what its handlers emit."""
    path = Path(str(resources.files("tsbatch") / "metrics.yaml"))
    return path if path.is_file() else None
