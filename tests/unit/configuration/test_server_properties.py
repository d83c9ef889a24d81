from __future__ import annotations

import os
import socket

import javaproperties
import pytest

from tsbatch.configuration import server_properties
from tsbatch.configuration.server_properties import ServerProperties
from tsbatch.errors import UsageError
from tsbatch.system.ports import is_free


def read(tmp_path, text):
    path = tmp_path / "config.properties"
    path.write_bytes(text.encode("latin-1"))
    return ServerProperties.read(path)


def complete(**values):
    made = ServerProperties(values)
    made.complete()
    return made


def test_what_is_left_open_is_filled():
    values = complete()
    ports = [
        int(values[key].rpartition(":")[2]) for key in (*server_properties.ADDRESSES, *server_properties.GRPC_PORTS)
    ]
    assert len(set(ports)) == 5
    assert all(map(is_free, ports))
    assert all(values[key].startswith("http://127.0.0.1:") for key in server_properties.ADDRESSES)
    assert values["enable_model_api"] == values["ts_open_inference_protocol"] == "true"
    assert values["metrics_config"] == str(server_properties.METRICS_FILE)
    assert values.token_lifetime == 365 * 24 * 3600


def test_what_the_user_says_holds():
    chosen = {
        "inference_address": "http://127.0.0.1:29001",
        "grpc_inference_port": "29002",
        "enable_model_api": "false",
        "metrics_config": "/my/metrics.yaml",
        "token_expiration_min": "0.5",
    }
    values = complete(**chosen)
    assert {key: values[key] for key in chosen} == chosen
    assert values.token_lifetime == 30
    assert values.address("grpc_inference_address") == "127.0.0.1:29002"


def test_java_rules_of_the_file(tmp_path, monkeypatch):
    monkeypatch.setenv("WHERE", "/data")
    values = read(tmp_path, '# c\nmodels={\\\n  "m": 1}\nmodel_store : $$WHERE$$/store\nname = caf\\u00e9\n')
    assert values == {"models": '{"m": 1}', "model_store": "/data/store", "name": "café"}


def test_relative_files_are_the_callers(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert read(tmp_path, "model_store=store\n")["model_store"] == str(tmp_path / "store")


def test_the_environment_wins_where_torchserve_lets_it(tmp_path, monkeypatch):
    monkeypatch.setenv("TS_INFERENCE_ADDRESS", "http://127.0.0.1:29003")
    assert read(tmp_path, "enable_envvars_config=true\n")["inference_address"] == "http://127.0.0.1:29003"
    assert "inference_address" not in read(tmp_path, "debug=false\n")


def test_the_names_of_the_environment_are_torchserves(tmp_path, monkeypatch):
    monkeypatch.setenv("TS_TOKEN_EXPIRATION_TIME_MIN", "5")
    monkeypatch.setenv("TS_NO_SUCH_KEY", "5")
    monkeypatch.setenv("TS_ALLOWED_URLS", ".*")
    assert read(tmp_path, "enable_envvars_config=true\n") == {
        "enable_envvars_config": "true",
        "token_expiration_min": "5",
    }
    both = "enable_envvars_config=true\nuse_env_allowed_urls=true\n"
    assert read(tmp_path, both)["allowed_urls"] == ".*"


def test_what_was_written_is_read_the_same(tmp_path):
    values = ServerProperties({"models": '{"a": {"1.0": {"batchSize": 4}}}', "name": "é = :x", "path": "C:\\m"})
    values.write(tmp_path / "out.properties")
    assert javaproperties.loads((tmp_path / "out.properties").read_bytes()) == values


@pytest.mark.parametrize(
    "text, message",
    [
        ("a=$$NO_SUCH_NAME$$\n", "a uses the environment variable NO_SUCH_NAME"),
        ("a=\\u12\n", "is not a valid .properties file"),
    ],
)
def test_files_that_cannot_be_used(tmp_path, text, message):
    with pytest.raises(UsageError, match=message):
        read(tmp_path, text)


def test_no_such_file(tmp_path):
    with pytest.raises(UsageError, match=r"cannot read .*none\.properties: No such file"):
        ServerProperties.read(tmp_path / "none.properties")
    assert ServerProperties.read(None) == {}


@pytest.mark.parametrize(
    "values, message",
    [
        ({"management_address": "unix:/tmp/x"}, "needs an address like"),
        (
            {"inference_address": "http://127.0.0.1:29004", "management_address": "http://127.0.0.1:29004"},
            "are the same",
        ),
    ],
)
def test_addresses_that_cannot_work(values, message):
    with pytest.raises(UsageError, match=message):
        complete(**values)


def test_minutes_that_are_no_number():
    with pytest.raises(UsageError, match="token_expiration_min is 'soon'"):
        _ = complete(token_expiration_min="soon").token_lifetime


@pytest.mark.parametrize("key", ["metrics_address", "grpc_management_port"])
def test_a_port_in_use(key):
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        with pytest.raises(UsageError, match=rf"port {port} \({key}\) is in use"):
            complete(**{key: str(port) if key.startswith("grpc") else f"http://127.0.0.1:{port}"})


def test_an_address_on_every_interface_is_called_on_this_machine():
    values = complete(inference_address="http://0.0.0.0:29005/", grpc_inference_address="0.0.0.0")
    assert values.address("inference_address") == "http://127.0.0.1:29005"
    assert values.address("grpc_inference_address").startswith("127.0.0.1:")


def test_worker_ports_are_chosen_where_workers_use_tcp():
    assert "initial_worker_port" not in complete() or os.name == "nt"
    assert is_free(int(complete(use_native_io="false")["initial_worker_port"]))


def test_tokens_are_off_on_windows(monkeypatch):
    values = ServerProperties()
    monkeypatch.setattr(server_properties, "os", type("Windows", (), {"name": "nt", "environ": {}}))
    values.complete()
    assert not values.token_authorization
