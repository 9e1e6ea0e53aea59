"""The options of a read: what is understood, and that all mistakes come at once."""

import pickle

import pytest

from ister.base import DEFAULT_URL, Origin
from ister.base.errors import ConfigError
from ister.spark.clients import BrokerEndpoint
from ister.spark.options import READ_NAMES, ReadBound, ReadOptions, parse_time_ms, read_options

TOPIC = {"topic": "/default/orders"}
TLS = TOPIC | {"url": "isters://host:6655"}


def mistakes(given: dict[str, str], *, streaming: bool | None = None) -> str:
    with pytest.raises(ConfigError) as caught:
        read_options(given, streaming=streaming)
    return str(caught.value)


def test_a_topic_is_enough() -> None:
    assert read_options(TOPIC) == ReadOptions(
        broker=BrokerEndpoint(url=DEFAULT_URL), topics=("/default/orders",)
    )


def test_names_are_taken_in_any_case() -> None:
    found = read_options({"TOPIC": "/default/orders", "includeattributes": "TRUE"})

    assert found.with_attributes


def test_the_path_of_load_is_a_topic() -> None:
    assert read_options({"path": "/default/orders"}).topics == ("/default/orders",)


def test_a_folder_that_create_table_adds_means_nothing() -> None:
    given = TOPIC | {"path": "file:/warehouse/orders"}

    assert read_options(given).topics == ("/default/orders",)


def test_a_path_and_another_topic_are_a_mistake() -> None:
    assert "two topics" in mistakes({"path": "/default/a", "topic": "/default/b"})


def test_topics_are_a_list_without_repetition() -> None:
    found = read_options({"topics": "/default/a, /default/b,/default/a"})

    assert found.topics == ("/default/a", "/default/b")


def test_a_batch_starts_at_the_earliest_and_a_stream_at_the_latest_message() -> None:
    assert read_options(TOPIC, streaming=False).start == ReadBound(Origin.EARLIEST)
    assert read_options(TOPIC, streaming=True).start == ReadBound(Origin.LATEST)


def test_offsets_by_partition_are_understood_with_words_as_in_kafka() -> None:
    given = TOPIC | {"startingOffsets": '{"/default/orders": {"0": 12, "1": -1, "2": -2}}'}

    bound = read_options(given).start

    wanted = [bound.offset("/default/orders", n, otherwise=Origin.EARLIEST) for n in range(4)]
    assert wanted == [12, Origin.LATEST, Origin.EARLIEST, Origin.EARLIEST]


@pytest.mark.parametrize(
    ("text", "time_ms"),
    [
        ("1760000000000", 1_760_000_000_000),
        ("1970-01-01T00:00:01Z", 1_000),
        ("1970-01-01T02:00:01+02:00", 1_000),
        ("1970-01-01 00:00:01.5Z", 1_500),
        ("1970-01-02T00:00Z", 86_400_000),
    ],
)
def test_a_time_is_iso_8601_or_milliseconds(text: str, time_ms: int) -> None:
    assert parse_time_ms(text) == time_ms


def test_sizes_and_spans_have_units() -> None:
    given = TOPIC | {"maxBytesPerTrigger": "64MiB", "pollTimeout": "500ms"}

    found = read_options(given, streaming=True)

    assert (found.bytes_max, found.poll_s) == (64 * 1024 * 1024, 0.5)


def test_options_of_the_store_are_passed_on_without_their_prefix() -> None:
    found = read_options(TOPIC | {"store.endpoint": "http://s3", "store.region": "eu"})

    assert found.store_options == {"endpoint": "http://s3", "region": "eu"}


def test_payload_is_left_out_when_it_is_decoded_unless_asked_for() -> None:
    assert not read_options(TOPIC | {"valueFormat": "json"}).with_payload
    assert read_options(TOPIC | {"valueFormat": "json", "includePayload": "true"}).with_payload
    assert read_options(TOPIC).with_payload


def test_an_unknown_option_names_its_neighbours_and_all_that_there_are() -> None:
    text = mistakes(TOPIC | {"startingOffset": "earliest"})

    assert "did you mean `startingOffsets`" in text
    assert all(name in text for name in READ_NAMES)


def test_all_mistakes_are_reported_together() -> None:
    text = mistakes(
        {
            "topic": "/default/a",
            "pattern": "/default/>",
            "minPartitions": "0",
            "failOnDataLoss": "maybe",
            "startingOffsets": "first",
            "endingOffsets": "earliest",
            "decodeErrors": "null",
        }
    )

    for word in (
        "`topic` and `pattern`",
        "`minPartitions`",
        "`failOnDataLoss` is true | false",
        "`startingOffsets`",
        "`endingOffsets`",
        "`decodeErrors` needs a `valueFormat`",
    ):
        assert word in text


@pytest.mark.parametrize(
    ("given", "word"),
    [
        ({}, "one of `topic`, `topics`"),
        ({"topic": "orders/eu"}, "a topic is '/namespace/topic'"),
        ({"topic": "/default/>"}, "give it as `pattern`"),
        ({"topics": "/default/a,/default/a-part-0"}, "is a partition of"),
        (TOPIC | {"startingOffsets": "earliest", "startingTimestamp": "0"}, "are both there"),
        (
            TOPIC | {"startingTimestamp": "1763500000009", "endingTimestamp": "1763500000008"},
            "is later than",
        ),
        (TOPIC | {"startingTimestamp": "yesterday"}, "is no time"),
        (TOPIC | {"startingTimestamp": "2026-01-31T12:00"}, "no time zone: write"),
        (TOPIC | {"startingTimestamp": "1763500000"}, "write milliseconds, 1763500000000"),
        (TOPIC | {"startingTimestamp": "1700000000000000"}, "are these milliseconds?"),
        (TOPIC | {"startingOffsets": '{"/default/b": {"0": 1}}'}, "which is not read"),
        (TOPIC | {"startingOffsets": '{"/default/orders": 5}'}, "no offsets by partition"),
        (TOPIC | {"startingOffsets": '{"/default/orders": {"0": "x"}}'}, "is none"),
        (
            TOPIC
            | {
                "startingOffsets": '{"/default/orders": {"0": 9}}',
                "endingOffsets": '{"/default/orders": {"0": 8}}',
            },
            "starts at 9 and ends at 8",
        ),
        (TOPIC | {"valueFormat": "xml"}, "bytes | string | json | avro | protobuf"),
        (TOPIC | {"valueFormat": "string", "valueSchema": "a int"}, "has no meaning"),
        (TOPIC | {"segments": "off", "keyFile": "k"}, "would do nothing"),
        (TOPIC | {"token": "t", "tokenFile": "f"}, "`token` and `tokenFile` are both there"),
        (TLS | {"tlsCert": "c"}, "`tlsCert` and `tlsKey` belong together"),
        (TLS | {"tlsKey": "k"}, "`tlsCert` and `tlsKey` belong together"),
        (TOPIC | {"tlsCa": "ca.pem"}, "`tlsCa` is for TLS: write `url` as isters://"),
        (TOPIC | {"url": "isters://hunter2@host"}, "`url` has no user or token in it"),
        (TOPIC | {"maxBytesPerTrigger": "much"}, "is no size"),
        (TOPIC | {"pollTimeout": "5m"}, "at most 60 s"),
    ],
)
def test_a_mistake_is_named(given: dict[str, str], word: str) -> None:
    assert word in mistakes(given)


@pytest.mark.parametrize(
    "given",
    [
        {"token": "hunter2", "tokenFile": "f"},
        {"tokn": "hunter2"},
        {"url": "isters://hunter2@host:6655"},
        {"token": "hunter2", "url": "ister://hunter2@host:6655", "tlsCa": "ca.pem"},
    ],
)
def test_a_secret_is_not_repeated_in_the_message_about_it(given: dict[str, str]) -> None:
    assert "hunter2" not in mistakes(TOPIC | given)


def test_what_a_broker_wants_to_see_goes_along_and_the_token_is_not_shown() -> None:
    files = {"tlsCa": "ca.pem", "tlsCert": "c.pem", "tlsKey": "c.key"}
    options = read_options({name.lower(): text for name, text in (TLS | files).items()})
    with_file = read_options(TLS | {"tokenFile": "/run/secrets/token"})
    with_token = pickle.loads(pickle.dumps(read_options(TLS | {"token": " hunter2 "})))

    assert options.broker == BrokerEndpoint(
        url="isters://host:6655", tls_ca="ca.pem", tls_cert="c.pem", tls_key="c.key"
    )
    assert with_file.broker == BrokerEndpoint(
        url="isters://host:6655", token_file="/run/secrets/token"
    )
    assert with_token.broker.token == "hunter2"
    assert "hunter2" not in repr(with_token)


@pytest.mark.parametrize("name", ["endingOffsets", "endingTimestamp", "pushdown"])
def test_what_is_for_a_batch_is_refused_by_a_stream(name: str) -> None:
    value = {"endingOffsets": "latest", "endingTimestamp": "1763500000000", "pushdown": "true"}[
        name
    ]

    read_options(TOPIC | {name: value}, streaming=False)
    assert "is for a batch read" in mistakes(TOPIC | {name: value}, streaming=True)


@pytest.mark.parametrize(
    "name", ["maxOffsetsPerTrigger", "maxBytesPerTrigger", "subscription", "pollTimeout"]
)
def test_what_is_for_a_stream_is_refused_by_a_batch(name: str) -> None:
    read_options(TOPIC | {name: "1"}, streaming=True)
    assert "is for a stream" in mistakes(TOPIC | {name: "1"}, streaming=False)
