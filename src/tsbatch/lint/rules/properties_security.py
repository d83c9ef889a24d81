"""Rules for config.properties about who can reach the server, and about what overrides the file."""

from __future__ import annotations

import re
from collections.abc import Iterator
from urllib.parse import urlsplit

from tsbatch.configuration.known_settings import ENVIRONMENT
from tsbatch.configuration.server_properties import ADDRESSES, REFERENCE
from tsbatch.lint.findings import Issue
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
LOOPBACK = {"127.0.0.1", "localhost", "::1"}
ANY_SERVER = ("http://anywhere.example/a.mar", "https://anywhere.example/a.mar", "s3://anywhere.example/a.mar")


def _is_open(pair: Pair) -> bool:
    """Whether other machines can reach the address."""
    host = urlsplit(pair.value).hostname
    return host is not None and host not in LOOPBACK and "$" not in host


@rule("config-address", PropertiesFile, "error")
def address(file: PropertiesFile) -> Iterator[Issue]:
    """An invalid address.

    An address is http://HOST:PORT, https://HOST:PORT or unix:/PATH; for anything else TorchServe fails to start with
    'Invalid binding address'.
    """
    for pair in file.pairs:
        valid = pair.key not in ADDRESSES or ADDRESS.fullmatch(pair.value)
        if not valid and not re.search(r"[$#\"'\s]", pair.value):
            bare = pair.value.rpartition("//")[2]
            right = f"{pair.key}=http://{bare if not bare.isdigit() else f'127.0.0.1:{bare}'}"
            effect = f"TorchServe does not start: Invalid binding address {pair.value}"
            yield Issue(pair.line, f"{pair.key}={pair.value} is not a valid address", effect, right)


@rule("config-same-address", PropertiesFile, "error")
def same_address(file: PropertiesFile) -> Iterator[Issue]:
    """The same address for inference and management with token authorization on.

    TorchServe then requires both tokens for each call; the tokens differ, so it refuses every call.
    """
    one, other = (file.values.get(key, DEFAULTS[key]) for key in ADDRESSES[:2])
    pair = file.last("management_address") or file.last("inference_address")
    if one == other and pair and not file.is_true("disable_token_authorization"):
        effect = "every management call is refused: it carries one token, and two different ones are required"
        message = "inference_address and management_address are the same, and token authorization is on"
        yield Issue(pair.line, message, effect, "management_address=http://127.0.0.1:8081")


@rule("config-port-twice", PropertiesFile, "error")
def port_twice(file: PropertiesFile) -> Iterator[Issue]:
    """A port that is used twice.

    Only inference and management may share an address; if any other two listeners share a port, TorchServe
    fails to start with 'Failed to bind to address'.
    """
    taken: dict[int, str] = {}
    for key, default in DEFAULTS.items():
        pair = file.last(key)
        port = _port(pair.value if pair else default)
        other = taken.get(port) if port else None
        shared = {key, other} == {"inference_address", "management_address"}
        if other and not shared and (named := pair or file.last(other)):
            effect = "TorchServe does not start: Failed to bind to address"
            yield Issue(named.line, f"{other} and {key} both use port {port}", effect, f"{key}={default}")
        elif port:
            taken[port] = key


def _port(value: str) -> int | None:
    match = re.search(r"(?:^|:)(\d{1,5})/?$", value)
    return int(match[1]) if match else None


@rule("config-open", PropertiesFile, "warning")
def open_address(file: PropertiesFile) -> Iterator[Issue]:
    """An address that is open to other machines with token authorization off.

    Anyone who can reach the management address can then register models, and so run code on the server; anyone who can
    reach the inference address can use the models.
    """
    if file.is_true("disable_token_authorization"):
        for pair in file.pairs:
            if pair.key in ADDRESSES[:2] and _is_open(pair):
                host, managed = urlsplit(pair.value).hostname or "", pair.key == "management_address"
                what = "can register models, and so run code here" if managed else "can use the models"
                message = f"{pair.key} is open to other machines and token authorization is off"
                right = f"{pair.key}={pair.value.replace(host, '127.0.0.1')}"
                yield Issue(pair.line, message, f"anyone who can reach it {what}", right)


@rule("config-open-metrics", PropertiesFile, "note")
def open_metrics(file: PropertiesFile) -> Iterator[Issue]:
    """A metrics address that is open to other machines.

    The metrics address never requires a token, whatever disable_token_authorization is set to.
    """
    pair = file.last("metrics_address")
    if pair and _is_open(pair):
        effect = "anyone who can reach it can read the names of the models and how much they are used"
        yield Issue(pair.line, "metrics_address is open to other machines", effect)


@rule("config-broad-urls", PropertiesFile, "warning")
def broad_urls(file: PropertiesFile) -> Iterator[Issue]:
    """allowed_urls that allow any server.

    allowed_urls restricts where the model API may load archives from, and an archive is code. The default allows every
    http(s) address.
    """
    pair, api = file.last("allowed_urls"), file.last("enable_model_api")
    right = "allowed_urls=file://.*"
    if pair is None:
        exposed = any(each.key == "management_address" and _is_open(each) for each in file.pairs)
        if api and file.is_true("enable_model_api") and exposed:
            effect = "anyone with the management token can register code from any http(s) address"
            yield Issue(api.line, "the model API is on and allowed_urls is not set", effect, right)
        return
    for pattern in pair.value.split(","):
        try:
            matched = next((url for url in ANY_SERVER if re.fullmatch(pattern, url)), None)
        except re.error:
            continue
        if matched:
            effect = f"TorchServe accepts archives from any address, such as {matched}, and an archive is code"
            yield Issue(pair.line, f"allowed_urls has {pattern}, which matches any server", effect, right)
            return


@rule("config-snapshot", PropertiesFile, "warning")
def snapshot(file: PropertiesFile) -> Iterator[Issue]:
    """A snapshot that overrides the file.

    With model_snapshot, TorchServe restores the models and settings of the snapshot and ignores load_models and
    models={} of the same file.
    """
    pair = file.last("model_snapshot")
    ignored = [key for key in ("load_models", "models") if key in file.values]
    if pair and ignored:
        effect = f"TorchServe ignores {' and '.join(ignored)} and restores the snapshot"
        yield Issue(pair.line, "model_snapshot overrides this file", effect, "remove model_snapshot, start with --ncs")


@rule("config-env-off", PropertiesFile, "warning")
def env_off(file: PropertiesFile) -> Iterator[Issue]:
    """Environment variables that are ignored.

    TS_... variables count only with enable_envvars_config=true in the file; then they override the file and the command
    line.
    """
    if file.is_true("enable_envvars_config"):
        return
    pair = file.last("use_env_allowed_urls")
    if pair and file.is_true("use_env_allowed_urls"):
        message = "use_env_allowed_urls needs enable_envvars_config"
        yield Issue(pair.line, message, "TorchServe does not read TS_ALLOWED_URLS", "enable_envvars_config=true")
    names = sorted(file.machine.environ.keys() & ENVIRONMENT.keys() - {"TS_OPEN_INFERENCE_PROTOCOL"})
    if names:
        message = f"{', '.join(names)} is set in the environment, and enable_envvars_config is not"
        yield Issue(1, message, "TorchServe does not read it", "enable_envvars_config=true")


@rule("config-env-unset", PropertiesFile, "warning")
def env_unset(file: PropertiesFile) -> Iterator[Issue]:
    """$$NAME$$ of a variable that is not set.

    TorchServe replaces $$NAME$$ with the environment variable, and fails to start with 'Invalid Environment Variable'
    if it is not set.
    """
    for pair in file.pairs:
        for name in REFERENCE.findall(pair.value):
            if name not in file.machine.environ:
                effect = "TorchServe does not start: Invalid Environment Variable"
                yield Issue(pair.line, f"{pair.key} uses {name}, which is not set here", effect, f"export {name}=...")


@rule("config-windows-tokens", PropertiesFile, "warning")
def windows_tokens(file: PropertiesFile) -> Iterator[Issue]:
    """Token authorization on Windows.

    On Windows, TorchServe cannot set the permissions of the key file, deletes it, and still requires the tokens, so
    nobody can make a request.
    """
    paths = (pair for pair in file.pairs if WINDOWS_PATH.match(pair.raw) or re.match(r"[A-Za-z]:/", pair.raw))
    if (pair := next(paths, None)) and not file.is_true("disable_token_authorization"):
        message = "these are Windows paths, and token authorization cannot work on Windows"
        yield Issue(pair.line, message, "every call is refused", "disable_token_authorization=true")
