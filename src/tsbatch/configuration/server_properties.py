"""The config.properties of a server that tsbatch manages: the user's file, completed by tsbatch.

The user's file has precedence. tsbatch adds what it does not set: addresses on 127.0.0.1 with free ports, the model
API, the Open Inference Protocol, and the metrics that tsbatch's handlers emit.
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
"""Default lifetime of a token: long enough that a copied token works as long as the server runs. TorchServe's own
default is 60 minutes."""

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
METRICS_FILE = Path(str(resources.files("tsbatch") / "metrics.yaml"))
"""The metrics file of tsbatch, which names the metrics of its handlers."""
WORKER_PORTS = 64
REFERENCE = re.compile(r"\$\$([^$]+)\$\$")
ALL_INTERFACES = {"0.0.0.0": "127.0.0.1", "[::]": "[::1]"}  # noqa: S104 - read from the user's file, never bound by tsbatch


class ServerProperties(dict[str, str]):
    """The settings of one server, by key of config.properties."""

    @classmethod
    def read(cls, path: Path | None) -> ServerProperties:
        """Read the user's file, and apply ``$$NAME$$`` and the environment as TorchServe does.

        Raises:
            UsageError: the file cannot be read.
        """
        if path is None:
            return cls()
        try:
            values = cls(javaproperties.loads(path.read_bytes()))
        except OSError as error:
            raise UsageError(f"cannot read {path}: {error.strerror or error}") from error
        except ValueError as error:
            raise UsageError(f"{path} is not a valid .properties file: {error}") from error
        values._expand(path)
        for key in FILES:
            if key in values:
                # Relative to the caller's folder, as if TorchServe were started there; it runs in its work folder.
                values[key] = str(Path(values[key]).absolute())
        return values

    def _expand(self, path: Path) -> None:
        for key, value in self.items():
            for name in REFERENCE.findall(value):
                if name not in os.environ:
                    raise UsageError(f"{path}: {key} uses the environment variable {name}, which is not set")
            self[key] = REFERENCE.sub(lambda match: os.environ[match[1]], value)
        if self.get("enable_envvars_config", "").lower() == "true":
            # The environment then overrides the file, and tsbatch must know the addresses that TorchServe will use.
            closed = set() if self.get("use_env_allowed_urls", "").lower() == "true" else {"TS_ALLOWED_URLS"}
            names = os.environ.keys() & ENVIRONMENT.keys() - closed
            self.update({ENVIRONMENT[name]: os.environ[name] for name in names})

    def complete(self) -> None:
        """Add what the user's file does not set.

        Raises:
            UsageError: an address is invalid or in use.
        """
        set_by_user = [key for key in (*ADDRESSES, *GRPC_PORTS) if key in self]
        self._fill_addresses()
        self.setdefault("enable_model_api", "true")
        self.setdefault("ts_open_inference_protocol", "true")
        if os.name == "nt":
            # TorchServe cannot set the key file's permissions there and deletes it (TokenAuthorization.java).
            self["disable_token_authorization"] = "true"  # noqa: S105 - a switch
        self.setdefault("token_expiration_min", str(YEAR_IN_MINUTES))
        self.setdefault("metrics_config", str(METRICS_FILE))
        self._check_addresses(set_by_user)

    def _fill_addresses(self) -> None:
        free = iter(free_ports(len(ADDRESSES) + len(GRPC_PORTS)))
        for key in ADDRESSES:
            self.setdefault(key, f"http://127.0.0.1:{next(free)}")
        for key in GRPC_PORTS:
            self.setdefault(key, str(next(free)))
        if os.name == "nt" or self.get("use_native_io", "true").lower() == "false":
            # Otherwise workers use Unix sockets in the server's own folder, and their ports are only names.
            self.setdefault("initial_worker_port", str(free_ports(WORKER_PORTS, consecutive=True)[0]))

    def _check_addresses(self, keys: list[str]) -> None:
        for key in ADDRESSES:
            if urlsplit(self[key]).scheme not in {"http", "https"}:
                raise UsageError(f"{key} is {self[key]}; tsbatch needs an address like http://127.0.0.1:8080")
        if self.token_authorization and self["inference_address"] == self["management_address"]:
            raise UsageError(
                "inference_address and management_address are the same: with token authorization on, TorchServe then "
                "requires both tokens for each call; give them different ports"
            )
        for key in keys:
            port = int(self[key]) if key in GRPC_PORTS else urlsplit(self[key]).port
            if port and not is_free(port):
                raise UsageError(
                    f"port {port} ({key}) is in use; choose another one, or remove {key} to use a free port"
                )

    @property
    def token_authorization(self) -> bool:
        """Whether the server requires tokens."""
        return self.get("disable_token_authorization", "false").lower() != "true"

    @property
    def token_lifetime(self) -> float:
        """The lifetime of a token, in seconds.

        Raises:
            UsageError: ``token_expiration_min`` is not a number.
        """
        try:
            return float(self["token_expiration_min"]) * 60
        except ValueError as error:
            raise UsageError(f"token_expiration_min is {self['token_expiration_min']!r}; expected minutes") from error

    def address(self, key: str) -> str:
        """Return the address of the server for clients on this machine, without a slash at the end."""
        if key == "grpc_inference_address":
            host = self.get(key, "127.0.0.1")
            return f"{ALL_INTERFACES.get(host, host)}:{self['grpc_inference_port']}"
        value = self[key].rstrip("/")
        for host, loopback in ALL_INTERFACES.items():
            value = value.replace(f"//{host}:", f"//{loopback}:")
        return value

    def write(self, path: Path) -> None:
        """Write the file that TorchServe reads."""
        path.write_text(javaproperties.dumps(self, timestamp=False), encoding="ascii")
