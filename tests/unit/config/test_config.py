"""The configuration of `ister serve`: which source wins, what is refused, and how it is told."""

from collections.abc import Mapping, Sequence
from dataclasses import fields
from pathlib import Path

import pytest

from ister.base.errors import ConfigError
from ister.base.limits import BATCH_BYTES_CEILING, MIB, Limits
from ister.config import ServerConfig, StorageConfig, all_settings, read_config


def read(
    flags: Mapping[str, object] | None = None,
    limits: Sequence[str] = (),
    environment: Mapping[str, str] | None = None,
    file: Path | None = None,
) -> ServerConfig:
    return read_config(
        flags=flags or {}, limit_flags=limits, environment=environment or {}, file=file
    )


def mistakes(
    flags: Mapping[str, object] | None = None,
    limits: Sequence[str] = (),
    environment: Mapping[str, str] | None = None,
    file: Path | None = None,
) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        read(flags, limits, environment, file)
    return caught.value.mistakes


@pytest.fixture
def toml(tmp_path: Path) -> Path:
    path = tmp_path / "ister.toml"
    path.write_text('[native]\nport = 3\nheartbeat = "3s"\n[limits]\ntopics_max = 3\n')
    return path


def test_defaults_listen_on_this_machine_only() -> None:
    config = read()

    assert (config.native.host, config.http_host) == ("127.0.0.1", "127.0.0.1")
    assert (config.native.port, config.http.port) == (6655, 8655)
    assert config.limits == Limits()


def test_a_flag_wins_over_a_variable_and_that_over_the_file(toml: Path) -> None:
    variables = {"ISTER_PORT": "2", "ISTER_LIMITS_TOPICS_MAX": "2"}

    assert read(file=toml).native.port == 3
    assert read(environment=variables, file=toml).native.port == 2
    assert read({"native.port": "1"}, environment=variables, file=toml).native.port == 1
    assert read(file=toml).limits.topics_max == 3
    assert read(environment=variables, file=toml).limits.topics_max == 2
    assert read(limits=["topics_max=1"], environment=variables, file=toml).limits.topics_max == 1


def test_a_mistake_in_a_source_that_loses_does_not_matter() -> None:
    config = read({"native.port": "1"}, environment={"ISTER_PORT": "x"})

    assert config.native.port == 1


@pytest.mark.parametrize("path", ["native.host", "http.host", "grpc.host"])
@pytest.mark.parametrize("host", ["a..b", "x" * 70, "a\0b", "\ud800"])
def test_a_host_that_cannot_be_one_is_a_mistake(path: str, host: str) -> None:
    with pytest.raises(ConfigError, match="is not a host name"):
        read({path: host})


@pytest.mark.parametrize("host", ["::1", "fe80::1%eth0", "0.0.0.0", "broker-1.local", "bücher.de"])
def test_a_host_is_a_name_or_an_address(host: str) -> None:
    assert read({"native.host": host}).native.host == host


def test_the_http_door_follows_the_host_unless_it_has_its_own() -> None:
    assert read({"native.host": "0.0.0.0"}).http_host == "0.0.0.0"
    assert read({"native.host": "0.0.0.0", "http.host": "::1"}).http_host == "::1"


def test_an_empty_variable_counts_as_not_set() -> None:
    assert read(environment={"ISTER_PORT": ""}).native.port == 6655


def test_every_limit_can_be_set_by_flag_variable_and_file(tmp_path: Path) -> None:
    for one in fields(Limits):
        value = BATCH_BYTES_CEILING if one.name.endswith("bytes_max") else 7
        others = ["batch_bytes_max=64MiB"] if one.name == "message_bytes_max" else []
        others += ["queues_bytes_max=1GiB"] if one.name == "queue_bytes_max" else []
        path = tmp_path / f"{one.name}.toml"
        path.write_text(f"[limits]\n{one.name} = {value}\n")

        by_flag = read(limits=[*others, f"{one.name}={value}"])
        by_variable = read(
            limits=others, environment={f"ISTER_LIMITS_{one.name.upper()}": str(value)}
        )
        by_file = read(limits=others, file=path)

        for config in (by_flag, by_variable, by_file):
            assert getattr(config.limits, one.name) == value


def test_every_setting_has_a_flag_a_variable_and_a_reason() -> None:
    for one in all_settings():
        assert one.flag.startswith("--")
        assert one.variable.startswith("ISTER_")
        assert one.why.endswith(".")


def test_no_two_settings_share_a_flag_or_a_variable() -> None:
    settings = all_settings()

    assert len({one.flag for one in settings}) == len(settings)
    assert len({one.variable for one in settings}) == len(settings)


@pytest.mark.parametrize(
    ("words", "size_bytes"),
    [
        ("2097152", 2 * MIB),
        ("2_097_152", 2 * MIB),
        ("2MiB", 2 * MIB),
        ("2 mib", 2 * MIB),
        ("2MB", 2_000_000),
        ("1.5KiB", 1536),
        ("2048B", 2048),
    ],
)
def test_a_size_takes_bytes_or_a_unit(words: str, size_bytes: int) -> None:
    assert read(limits=[f"message_bytes_max={words}"]).limits.message_bytes_max == size_bytes


@pytest.mark.parametrize("words", ["", "2 M", "2XB", "-1MiB", "MiB", "1e6", "0x10"])
def test_what_is_no_size_is_refused(words: str) -> None:
    assert len(mistakes(limits=[f"message_bytes_max={words}"])) == 1


@pytest.mark.parametrize(
    ("words", "milliseconds"),
    [
        ("10", 10_000),
        ("0.5", 500),
        ("500ms", 500),
        ("2s", 2_000),
        ("1.5m", 90_000),
        ("1h", 3_600_000),
        (3, 3_000),
    ],
)
def test_a_time_span_takes_seconds_or_a_unit(words: object, milliseconds: int) -> None:
    assert read({"native.heartbeat": words}).native.heartbeat_ms == milliseconds


@pytest.mark.parametrize("words", ["soon", "-1", "1w", "", float("nan"), True])
def test_what_is_no_time_span_is_refused(words: object) -> None:
    assert len(mistakes({"native.heartbeat": words})) == 1


@pytest.mark.parametrize(
    ("path", "low", "high"),
    [("native.port", 0, 65_535), ("http.port", 0, 65_535), ("shutdown.deadline", 0, 3_600)],
)
def test_bounds_include_their_ends_and_nothing_beyond(path: str, low: int, high: int) -> None:
    read({path: str(low)})
    read({path: str(high)})

    assert len(mistakes({path: str(high + 1)})) == 1
    assert len(mistakes({path: "-1"})) == 1


@pytest.mark.parametrize("name", ["message_bytes_max", "batch_bytes_max"])
def test_a_batch_cannot_be_allowed_beyond_what_the_format_holds(name: str) -> None:
    read(limits=["batch_bytes_max=64MiB", f"{name}=64MiB"])

    found = mistakes(limits=["batch_bytes_max=64MiB", f"{name}={BATCH_BYTES_CEILING + 1}"])
    assert found == [f"--limit {name}={BATCH_BYTES_CEILING + 1}: is out of bounds: 1KiB to 64MiB"]


def test_all_mistakes_of_all_sources_are_reported_together(tmp_path: Path) -> None:
    path = tmp_path / "ister.toml"
    path.write_text('colour = 1\n[http]\nport = "x"\n[nativ]\nport = 1\n[limits]\ntopic_max = 1\n')

    found = mistakes(
        {"native.port": "abc", "log.level": "loud"},
        ["no-equals", "tpics_max=1"],
        {"ISTER_HEARTBEAT": "never", "ISTER_LIMITS_TOPIC": "1"},
        path,
    )

    text = "\n".join(found)
    assert len(found) == 10
    for word in ("--port abc", "--log-level loud", "--limit no-equals", "--limit tpics_max=1"):
        assert word in text
    for word in ("ISTER_HEARTBEAT=never", "ISTER_LIMITS_TOPIC:", "[http] port = 'x'", "[nativ]"):
        assert word in text
    assert "did you mean `topics_max`?" in text
    assert "colour: no such setting" in text


def test_a_file_that_is_missing_is_a_mistake(tmp_path: Path) -> None:
    assert "cannot be read" in mistakes(file=tmp_path / "none.toml")[0]


@pytest.mark.parametrize("content", [b"port = ", b"\xff\xfe", b"[native]\nport = 1\nport = 2\n"])
def test_a_file_that_is_no_toml_is_a_mistake(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "ister.toml"
    path.write_bytes(content)

    assert "is no TOML" in mistakes(file=path)[0]


def test_a_message_must_fit_into_a_batch() -> None:
    found = mistakes(limits=["message_bytes_max=2MiB", "batch_bytes_max=1MiB"])

    assert "message_bytes_max (2MiB) is above batch_bytes_max (1MiB)" in found[0]


def test_one_queue_must_fit_into_all_queues() -> None:
    assert len(mistakes(limits=["queue_bytes_max=2MiB", "queues_bytes_max=1MiB"])) == 1


def test_two_doors_cannot_share_a_port_unless_it_is_picked() -> None:
    read({"native.port": "0", "http.port": "0"})
    read({"native.port": "7000", "http.port": "7000", "http.host": "127.0.0.2"})

    found = mistakes({"native.port": "7000", "http.port": "7000"})
    assert "port 7000 is given to --port and --http-port" in found[0]
    assert "--grpc-port and --admin-port" in mistakes({"grpc.port": "7", "grpc.admin_port": "7"})[0]


def test_danubes_own_port_is_no_other_doors() -> None:
    assert "--port and --grpc-port" in mistakes({"native.port": "6650"})[0]
    read({"native.port": "6650", "grpc.mode": "off"})


def test_the_grpc_doors_are_demanded_by_whoever_names_them() -> None:
    assert not read({}).grpc.demanded
    assert read({"grpc.mode": "on"}).grpc.demanded
    assert read({"grpc.admin_port": "0"}).grpc.demanded
    assert not read({"grpc.port": "0", "grpc.mode": "off"}).grpc.demanded


def test_the_grpc_doors_are_where_danube_has_them_unless_told_otherwise() -> None:
    config = read({"native.host": "127.0.0.3"})
    assert (config.grpc_host, config.grpc_port, config.admin_port) == ("127.0.0.3", 6650, 50051)

    config = read({"grpc.host": "127.0.0.4", "grpc.port": "1", "grpc.admin_port": "0"})
    assert (config.grpc_host, config.grpc_port, config.admin_port) == ("127.0.0.4", 1, 0)


def test_a_kubernetes_service_link_is_told_apart_from_a_port() -> None:
    found = mistakes(environment={"ISTER_PORT": "tcp://10.0.0.1:6655"})

    assert "enableServiceLinks" in found[0]


@pytest.mark.parametrize("name", ["with space", "a/b", ""])
def test_a_broker_name_follows_the_naming_rules(name: str) -> None:
    assert len(mistakes({"name": name})) == 1


def test_storage_is_set_by_its_flags() -> None:
    config = read(
        {
            "storage.memory": "1GiB",
            "storage.segment": "1MiB",
            "storage.object_store": "s3://bucket/objects",
            "storage.tier": "s3://bucket/tier",
            "storage.key_file": "keys.json",
        }
    )

    assert config.storage == StorageConfig(
        memory_bytes=1024 * MIB,
        segment_bytes=1 * MIB,
        object_store="s3://bucket/objects",
        tier="s3://bucket/tier",
        key_file=Path("keys.json"),
    )


@pytest.mark.parametrize(
    ("raw", "expected"), [("true", True), ("false", False), (True, True), (False, False)]
)
def test_unencrypted_data_is_accepted_only_when_asked_to(raw: object, expected: bool) -> None:
    assert not read({"storage.key_file": "k"}).storage.accept_unencrypted
    config = read({"storage.key_file": "k", "storage.accept_unencrypted": raw})
    assert config.storage.accept_unencrypted is expected


def test_a_switch_is_true_or_false() -> None:
    [found] = mistakes({"storage.key_file": "k", "storage.accept_unencrypted": "perhaps"})
    assert "neither true nor false" in found


def test_unencrypted_data_cannot_be_accepted_without_keys() -> None:
    [found] = mistakes({"storage.accept_unencrypted": True})
    assert "--key-file" in found


def test_streams_are_kept_beside_the_broker_unless_a_folder_is_named() -> None:
    assert read().data_folder == Path("ister-data")
    assert read({"data": "elsewhere"}).data_folder == Path("elsewhere")


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (
            {"storage.object_store": "s3://b/x", "storage.tier": "s3://b/x/"},
            "--object-store and --tier are both s3://b/x",
        ),
        (
            {"data": "/data/x", "storage.object_store": "file:///data/x"},
            "--data and --object-store are both file:///data/x",
        ),
        (
            {"data": "/data/x", "storage.tier": "file:///data/x"},
            "--data and --tier are both file:///data/x",
        ),
    ],
)
def test_two_places_that_write_files_cannot_be_one(flags: dict[str, str], words: str) -> None:
    [mistake] = mistakes(flags)

    assert words in mistake


@pytest.mark.parametrize("url", ["mysql://u:hidden@h/d", "hidden"])
def test_a_setting_that_may_hold_a_password_is_blamed_without_its_value(
    tmp_path: Path, url: str
) -> None:
    file = tmp_path / "ister.toml"
    file.write_text(f'[storage]\ntimelines = "{url}"\n')
    told = [
        *mistakes({"storage.timelines": url}),
        *mistakes(environment={"ISTER_TIMELINES": url}),
        *mistakes(file=file),
    ]

    assert [words.partition(": is no URL")[0] for words in told] == [
        "--timelines",
        "ISTER_TIMELINES",
        f"{file}: [storage] timelines",
    ]
    assert "hidden" not in "".join(told)


def test_a_password_is_not_shown_with_the_configuration() -> None:
    config = read({"storage.timelines": "postgresql://u:hidden@h/d"})

    assert config.storage.timelines == "postgresql://u:hidden@h/d"
    assert "hidden" not in repr(config)
