"""Rules over config.properties that concern who reaches the server, and what wins over the file."""

from __future__ import annotations

import re
from collections.abc import Iterator
from urllib.parse import urlsplit

from tsbatch.configuration.known_settings import ENVIRONMENT
from tsbatch.configuration.server_properties import ADDRESSES, REFERENCE
from tsbatch.lint.findings import Found
from tsbatch.lint.properties_file import Pair, PropertiesFile
from tsbatch.lint.registry import rule
from tsbatch.lint.rules.properties_keys import WINDOWS_PATH

ADDRESS = re.compile(r"(https?://[^:/]+(:\d+)?/?)|(unix:/.*)", re.IGNORECASE)
DEFAULTS = {
    "inference_address": "http://127.0.0.1:8080",
    "management_address": "http://127.0.0.1:8081",
    "metrics_address": "http://127.0.0.1:8082",
    "grpc_inference_port": "7070",
    "grpc_management_port": "7071",
}
HERE = {"127.0.0.1", "localhost", "::1"}
ANYWHERE = ("http://anywhere.example/a.mar", "https://anywhere.example/a.mar", "s3://anywhere.example/a.mar")


def open_host(pair: Pair) -> bool:
    """Whether other machines reach the address."""
    host = urlsplit(pair.value).hostname
    return host is not None and host not in HERE and "$" not in host


@rule(
    "config-address",
    PropertiesFile,
    "error",
    "an address that TorchServe cannot use",
    "An address is http://HOST:PORT, https://HOST:PORT or unix:/PATH; TorchServe ends at the start with "
    "'Invalid binding address'.",
)
def address(file: PropertiesFile) -> Iterator[Found]:
    """``inference_address=0.0.0.0:8080``."""
    for pair in (pair for pair in file.pairs if pair.key in ADDRESSES):
        if not ADDRESS.fullmatch(pair.value) and not re.search(r"[$#\"'\s]", pair.value):
            bare = pair.value.rpartition("//")[2]
            right = f"{pair.key}=http://{bare if not bare.isdigit() else f'127.0.0.1:{bare}'}"
            effect = f"TorchServe does not start: Invalid binding address {pair.value}"
            yield Found(pair.line, f"{pair.key}={pair.value} is no address", effect, right)


@rule(
    "config-same-address",
    PropertiesFile,
    "error",
    "one address for inference and management with authorisation on",
    "With both on one address TorchServe asks each call for both tokens, which differ: nothing gets through.",
)
def same_address(file: PropertiesFile) -> Iterator[Found]:
    """The same address twice, while tokens are asked for."""
    one, other = (file.values.get(key, DEFAULTS[key]) for key in ADDRESSES[:2])
    pair = file.last("management_address") or file.last("inference_address")
    if one == other and pair and not file.is_true("disable_token_authorization"):
        effect = "every management call is refused: it carries one token where two different ones are asked for"
        message = "inference_address and management_address are the same, and token authorisation is on"
        yield Found(pair.line, message, effect, "management_address=http://127.0.0.1:8081")


@rule(
    "config-port-twice",
    PropertiesFile,
    "error",
    "a port that is used twice",
    "Only inference and management may share an address; any other pair on one port ends the start with "
    "'Failed to bind to address'.",
)
def port_twice(file: PropertiesFile) -> Iterator[Found]:
    """Two listeners on one port."""
    taken: dict[int, str] = {}
    for key, default in DEFAULTS.items():
        pair = file.last(key)
        port = _port(pair.value if pair else default)
        before = taken.get(port) if port else None
        shared = {key, before} == {"inference_address", "management_address"}
        if before and not shared and (pair or file.last(before)):
            line = (pair or file.last(before) or file.pairs[0]).line
            effect = "TorchServe ends while starting: Failed to bind to address"
            yield Found(line, f"{before} and {key} both use port {port}", effect, f"{key}={default}")
        elif port:
            taken[port] = key


def _port(value: str) -> int | None:
    match = re.search(r"(?:^|:)(\d{1,5})/?$", value)
    return int(match[1]) if match else None


@rule(
    "config-open",
    PropertiesFile,
    "warning",
    "an open address with authorisation off",
    "Without token authorisation everybody who reaches the management address registers models, which is running code "
    "on the server, and everybody who reaches the inference address uses them.",
)
def open_address(file: PropertiesFile) -> Iterator[Found]:
    """``0.0.0.0`` together with disable_token_authorization=true."""
    if not file.is_true("disable_token_authorization"):
        return
    for pair in (pair for pair in file.pairs if pair.key in ADDRESSES[:2]):
        if open_host(pair):
            host = urlsplit(pair.value).hostname or ""
            what = "registers models and so runs code here" if pair.key == "management_address" else "uses the models"
            right = f"{pair.key}={pair.value.replace(host, '127.0.0.1')}"
            message = f"{pair.key} is open to other machines and token authorisation is off"
            yield Found(pair.line, message, f"everybody who reaches it {what}", right)


@rule(
    "config-open-metrics",
    PropertiesFile,
    "note",
    "an open metrics address",
    "The metrics address never asks for a token, whatever disable_token_authorization says.",
)
def open_metrics(file: PropertiesFile) -> Iterator[Found]:
    """A metrics address that other machines reach."""
    pair = file.last("metrics_address")
    if pair and open_host(pair):
        effect = "everybody who reaches it reads the names of the models and how much they are used"
        yield Found(pair.line, "metrics_address is open to other machines", effect)


@rule(
    "config-broad-urls",
    PropertiesFile,
    "warning",
    "allowed_urls that allow any server",
    "allowed_urls says where archives may come from when the model API is on, and an archive is code. Its default "
    "allows every http(s) address.",
)
def broad_urls(file: PropertiesFile) -> Iterator[Found]:
    """Patterns that match any host, or none at all with the model API on."""
    pair = file.last("allowed_urls")
    right = "allowed_urls=file://.*"
    if pair is None:
        api = file.last("enable_model_api")
        if api and file.is_true("enable_model_api") and any(map(open_host, _listeners(file))):
            effect = "whoever has the management token registers code from any http(s) address"
            yield Found(api.line, "the model API is on and allowed_urls is not set", effect, right)
        return
    for pattern in pair.value.split(","):
        try:
            matched = next((url for url in ANYWHERE if re.fullmatch(pattern, url)), None)
        except re.error:
            continue
        if matched:
            effect = f"an archive from any address is taken, {matched} too, and an archive is code"
            yield Found(pair.line, f"allowed_urls has {pattern}, which matches any server", effect, right)
            return


def _listeners(file: PropertiesFile) -> list[Pair]:
    return [pair for pair in file.pairs if pair.key == "management_address"]


@rule(
    "config-snapshot",
    PropertiesFile,
    "warning",
    "a snapshot that wins over the file",
    "With model_snapshot TorchServe restores the models and settings of the snapshot; load_models and models={} of the "
    "same file are ignored.",
)
def snapshot(file: PropertiesFile) -> Iterator[Found]:
    """model_snapshot beside load_models or models."""
    pair = file.last("model_snapshot")
    ignored = [key for key in ("load_models", "models") if key in file.values]
    if pair and ignored:
        effect = f"TorchServe ignores {' and '.join(ignored)} and restores what the snapshot says"
        yield Found(pair.line, "model_snapshot wins over this file", effect, "remove model_snapshot, start with --ncs")


@rule(
    "config-env-off",
    PropertiesFile,
    "warning",
    "environment variables that are not read",
    "TS_... variables count only with enable_envvars_config=true in the file; then they win over the file and the "
    "command line.",
)
def env_off(file: PropertiesFile) -> Iterator[Found]:
    """Variables that are set here, or use_env_allowed_urls, without the switch."""
    if file.is_true("enable_envvars_config"):
        return
    pair = file.last("use_env_allowed_urls")
    if pair and file.is_true("use_env_allowed_urls"):
        effect = "TorchServe does not read TS_ALLOWED_URLS"
        yield Found(pair.line, "use_env_allowed_urls needs enable_envvars_config", effect, "enable_envvars_config=true")
    names = sorted(file.machine.environ.keys() & ENVIRONMENT.keys() - {"TS_OPEN_INFERENCE_PROTOCOL"})
    if names:
        message = f"{', '.join(names)} is set in the environment, and enable_envvars_config is not"
        yield Found(1, message, "TorchServe does not read it", "enable_envvars_config=true")


@rule(
    "config-env-unset",
    PropertiesFile,
    "warning",
    "$$NAME$$ of a variable that is not set",
    "TorchServe replaces $$NAME$$ by the environment variable, and ends at the start with 'Invalid Environment "
    "Variable' when it is not set.",
)
def env_unset(file: PropertiesFile) -> Iterator[Found]:
    """``$$NAME$$`` where no such variable is set here."""
    for pair in file.pairs:
        for name in REFERENCE.findall(pair.value):
            if name not in file.machine.environ:
                effect = "TorchServe does not start: Invalid Environment Variable"
                yield Found(pair.line, f"{pair.key} uses {name}, which is not set here", effect, f"export {name}=...")


@rule(
    "config-windows-tokens",
    PropertiesFile,
    "warning",
    "token authorisation on Windows",
    "On Windows TorchServe cannot set the key file's permissions, deletes it, and goes on asking for tokens that "
    "nobody has.",
)
def windows_tokens(file: PropertiesFile) -> Iterator[Found]:
    """A file with Windows paths that leaves authorisation on."""
    if file.is_true("disable_token_authorization"):
        return
    for pair in file.pairs:
        if WINDOWS_PATH.match(pair.raw) or re.match(r"[A-Za-z]:/", pair.raw):
            message = "the paths are Windows', where token authorisation cannot work"
            yield Found(pair.line, message, "every call is refused", "disable_token_authorization=true")
            return
