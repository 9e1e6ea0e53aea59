"""Producers with a schema on a new connection: the broker may have forgotten it."""

import pytest
from tests.unit.client.session.wire_end import TOPIC, WireEnd, opened, send

from ister.base import SchemaVersion
from ister.base.errors import (
    IsterError,
    LimitReachedError,
    SchemaIncompatibleError,
    SchemaNotFoundError,
)
from ister.client.session import ProducerChannel, Values, registration_of
from ister.codec import Batch, Codec
from ister.wire import (
    Command,
    GetSchema,
    GoingAway,
    Opcode,
    OpenProducer,
    RegisterSchema,
    SchemaFound,
    SchemaRegistered,
    error_reply,
)

REGISTRATION = registration_of(Values(str), "texts")


@pytest.fixture
def end() -> WireEnd:
    """Connected."""
    end = WireEnd()
    end.connect()
    return end


@pytest.fixture
def producer(end: WireEnd) -> ProducerChannel:
    """Open, with a schema that it has registered as 1, version 1."""
    producer = end.session.open_producer(
        TOPIC,
        name="shop",
        codec=Codec.NONE,
        resend=True,
        schema=(1, 1),
        registration=REGISTRATION,
        on_reply=lambda _: None,
    )
    [(sequence, _)] = end.commands()
    end.tell(opened(), sequence=sequence)
    return producer


def reconnect(end: WireEnd) -> None:
    end.session.disconnected("test")
    end.connect()


def answer(end: WireEnd, expected: type[Command], reply: Command | IsterError) -> None:
    """Answer the one command that the client has sent."""
    [(sequence, command)] = end.commands()
    assert isinstance(command, expected)
    end.tell(error_reply(reply) if isinstance(reply, IsterError) else reply, sequence=sequence)


def found(subject: str = "texts", fingerprint: str = REGISTRATION.fingerprint) -> SchemaFound:
    return SchemaFound(
        schema=SchemaVersion(
            subject=subject,
            schema_id=1,
            version=1,
            type="string",
            definition=b"",
            fingerprint=fingerprint,
            description="",
            created_by="",
            tags=[],
            created_ms=0,
        )
    )


def registered() -> SchemaRegistered:
    return SchemaRegistered(schema_id=7, version=2, is_new=True, fingerprint="string")


def named(end: WireEnd) -> list[tuple[int, int] | None]:
    """The schemas of the batches that the client has sent."""
    return [Batch(body).schema for opcode, _, _, body in end.frames() if opcode == Opcode.PUBLISH]


def test_a_schema_that_is_known_stays(end: WireEnd, producer: ProducerChannel) -> None:
    reconnect(end)
    send(producer, b"x")
    answer(end, GetSchema, found())
    answer(end, OpenProducer, opened())

    assert named(end) == [(1, 1)]


@pytest.mark.parametrize(
    "known",
    [SchemaNotFoundError("1", 1), found(subject="another"), found(fingerprint="int64")],
    ids=["gone", "another subject", "another schema"],
)
def test_a_schema_that_is_not_known_is_registered_before_anything_is_sent(
    end: WireEnd, producer: ProducerChannel, known: Command | IsterError
) -> None:
    reconnect(end)
    send(producer, b"x")
    answer(end, GetSchema, known)
    answer(end, RegisterSchema, registered())
    answer(end, OpenProducer, opened())

    assert named(end) == [(7, 2)]


def test_what_was_under_way_names_the_new_number_when_it_goes_again(
    end: WireEnd, producer: ProducerChannel
) -> None:
    send(producer, b"x")
    assert named(end) == [(1, 1)]
    reconnect(end)
    answer(end, GetSchema, SchemaNotFoundError("1", 1))
    answer(end, RegisterSchema, registered())
    answer(end, OpenProducer, opened())

    assert named(end) == [(7, 2)]


def test_a_schema_that_is_refused_ends_its_producer(
    end: WireEnd, producer: ProducerChannel
) -> None:
    reconnect(end)
    sent = send(producer, b"x")
    answer(end, GetSchema, SchemaNotFoundError("1", 1))
    answer(end, RegisterSchema, SchemaIncompatibleError("texts", "backward", ["the type changed"]))

    assert isinstance(producer.closed, SchemaIncompatibleError)
    assert isinstance(sent.batch.error, SchemaIncompatibleError)
    assert end.commands() == []


def test_a_broker_that_is_busy_gets_the_number_it_gave(
    end: WireEnd, producer: ProducerChannel
) -> None:
    reconnect(end)
    send(producer, b"x")
    answer(end, GetSchema, SchemaNotFoundError("1", 1))
    answer(end, RegisterSchema, LimitReachedError("calls_max", 1))
    answer(end, OpenProducer, opened())

    assert named(end) == [(1, 1)]


@pytest.mark.parametrize("asked", [1, 2])
def test_a_broker_that_goes_away_meanwhile_ends_nothing(
    end: WireEnd, producer: ProducerChannel, asked: int
) -> None:
    reconnect(end)
    send(producer, b"x")
    if asked == 2:
        answer(end, GetSchema, SchemaNotFoundError("1", 1))
    [(sequence, _)] = end.commands()
    end.tell(GoingAway(reason="restart"))
    end.tell(registered() if asked == 2 else found(), sequence=sequence)
    assert producer.closed is None

    reconnect(end)
    answer(end, GetSchema, found())
    answer(end, OpenProducer, opened())

    assert len(named(end)) == 1


def test_a_producer_that_is_closed_meanwhile_is_not_opened_again(
    end: WireEnd, producer: ProducerChannel
) -> None:
    reconnect(end)
    [(sequence, _)] = end.commands()
    end.session.close_producer(producer)
    end.commands()
    end.tell(found(), sequence=sequence)

    assert end.commands() == []
