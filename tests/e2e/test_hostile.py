"""Bad input on the native port: a typed error or a disconnect, and nobody else notices.

All attacks hit one broker process. While each one holds its connections open, and again after
it, a healthy client publishes and receives; the broker's memory stays within a bound; its log
tells of no bug of its own.
"""

import random
import struct
from collections.abc import Iterator
from contextlib import suppress

import msgspec
import pytest
from tests.e2e.raw import RawClient, header, publish
from tests.e2e.target import Target, assert_refused, attacked, open_target
from tests.unit.codec.strategies import resealed

from ister.base.errors import (
    BadBatchError,
    BadRequestError,
    IsterError,
    ProtocolError,
    VersionError,
)
from ister.base.limits import BATCH_BYTES_EXCESS, CONTROL_BYTES_MAX, Limits
from ister.codec import encode
from ister.wire import (
    CloseConsumer,
    CloseProducer,
    Command,
    Done,
    ErrorReply,
    Hello,
    ListTopics,
    Opcode,
    OpenProducer,
    Subscribe,
    control_frame,
    credit_frame,
    decode_command,
    error_of,
    publish_frame,
)
from ister.wire.frames import FRAME_HEADER_BYTES, HELLO_BYTES_MAX, ping_frame

pytestmark = pytest.mark.e2e

SEED = 20_240_229


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Target]:
    with open_target(tmp_path_factory.mktemp("hostile")) as target:
        yield target


# Bytes that are not the protocol, before a hello and after it.

TLS_HELLO = bytes.fromhex("16030100c8010000c40303") + bytes(range(189))

LARGEST_FRAME_BYTES = Limits().batch_bytes_max + BATCH_BYTES_EXCESS

STREAMS: dict[str, bytes] = {
    "an HTTP request": b"GET / HTTP/1.1\r\nHost: ister\r\nUser-Agent: curl/8\r\n\r\n",
    "a TLS handshake": TLS_HELLO,
    "a NATS greeting": b'CONNECT {"verbose":false,"pedantic":false}\r\nPING\r\n',
    "zeros": bytes(4_096),
    "text without end": b"A" * 100_000,
    "a frame with a wrong magic": struct.pack("<IBBHII", 8, Opcode.CREDIT, 0, 0x4953, 1, 0),
    "a publish larger than any batch": header(LARGEST_FRAME_BYTES + 1, Opcode.PUBLISH),
    "the largest length there is": header(0xFFFF_FFFF, Opcode.PUBLISH),
    "a command larger than any": header(CONTROL_BYTES_MAX + 1, Opcode.CONTROL),
    "an empty command": header(0, Opcode.CONTROL),
    "a credit of the wrong size": header(9, Opcode.CREDIT) + bytes(9),
    "a ping with a body": header(1, Opcode.PING) + b"x",
    "a publish smaller than a header": header(63, Opcode.PUBLISH) + bytes(63),
}


@pytest.mark.parametrize("greeted", [False, True], ids=["before hello", "after hello"])
@pytest.mark.parametrize("stream", STREAMS.values(), ids=STREAMS)
def test_what_is_no_frame_ends_its_connection_with_a_protocol_error(
    target: Target, stream: bytes, greeted: bool
) -> None:
    with attacked(target):
        raw = target.greeted() if greeted else target.connect()
        raw.send(stream)
        assert_refused(raw, ProtocolError)


@pytest.mark.parametrize("greeted", [False, True], ids=["before hello", "after hello"])
def test_random_bytes_end_their_connections(target: Target, greeted: bool) -> None:
    rng = random.Random(SEED)
    with attacked(target):
        raws = [target.greeted() if greeted else target.connect() for _ in range(50)]
        for raw in raws:
            raw.send(rng.randbytes(rng.choice([20, 100, 5_000, 200_000])))
        target.check()
        for raw in raws:
            assert_refused(raw, ProtocolError)


@pytest.mark.parametrize("opcode", [0, 2, 3, 9, 15, 17, 127, 255])
def test_an_opcode_that_is_unknown_or_not_for_a_broker_ends_its_connection(
    target: Target, opcode: int
) -> None:
    size = {Opcode.PUBLISHED: 16, Opcode.DELIVER: 64}.get(opcode, 0)
    with attacked(target):
        raw = target.greeted()
        raw.send(header(size, opcode), bytes(size))
        assert_refused(raw, ProtocolError)


def test_frames_cut_short_by_a_close_leave_nothing_behind(target: Target) -> None:
    hello = control_frame(Hello(client_id="cut"))
    frame = publish(b"x" * 1_000)
    with attacked(target):
        for size in (1, FRAME_HEADER_BYTES - 1, FRAME_HEADER_BYTES, len(hello) - 1):
            with target.connect() as raw:
                raw.send(hello[:size])
        for size in (1, FRAME_HEADER_BYTES, 80, len(frame) - 1):
            with target.greeted() as raw:
                raw.open_producer("/default/cut")
                raw.send(frame[:size])
            with suppress(ConnectionError):
                raw = target.greeted()
                raw.open_producer("/default/cut")
                raw.send(frame[:size])
                raw.reset()

    [report] = target.client.topics("/default/cut")
    assert (report.messages_in, report.producers) == (0, 0)


# The handshake


def hellos(**changes: object) -> bytes:
    """Return a hello frame with some fields of its map replaced, or removed with `None`."""
    fields: dict[str, object] = {"op": "hello", "client_id": "x", "version_min": 1}
    fields |= changes
    body = msgspec.msgpack.encode({k: v for k, v in fields.items() if v is not None})
    return header(len(body), Opcode.CONTROL) + body


BAD_HELLOS: dict[str, tuple[bytes, type[IsterError]]] = {
    "another command": (control_frame(ListTopics()), ProtocolError),
    "no client id": (hellos(client_id=None), ProtocolError),
    "an empty client id": (hellos(client_id=""), ProtocolError),
    "a number as client id": (hellos(client_id=7), ProtocolError),
    "only newer versions": (hellos(version_min=2, version_max=9), VersionError),
    "only older versions": (hellos(version_min=0, version_max=0), VersionError),
    "versions that no machine holds": (hellos(version_min=2**64 - 1), VersionError),
    "more than a hello may have": (hellos(agent="a" * HELLO_BYTES_MAX), ProtocolError),
    "a ping first": (ping_frame() + hellos(), ProtocolError),
    "a publish first": (publish(b"x") + hellos(), ProtocolError),
    "a publish without waiting for the welcome": (hellos() + publish(b"x"), ProtocolError),
    "two hellos": (hellos() + hellos(), ProtocolError),
}


@pytest.mark.parametrize(("sent", "kind"), BAD_HELLOS.values(), ids=BAD_HELLOS)
def test_a_bad_hello_is_answered_with_its_error(
    target: Target, sent: bytes, kind: type[IsterError]
) -> None:
    with attacked(target):
        raw = target.connect()
        raw.send(sent)
        assert_refused(raw, kind)


def test_the_version_error_names_what_the_broker_speaks(target: Target) -> None:
    raw = target.connect()
    raw.send(hellos(version_min=7, version_max=9))

    error = assert_refused(raw, VersionError)

    assert isinstance(error, VersionError)
    assert (error.versions, error.versions_accepted) == ("7-9", "1-1")


# Commands


def nested(depth: int) -> bytes:
    return b"\x82\xa2op\xaclist_topics\xa7pattern" + b"\x91" * depth + b"\x00"


GARBAGE: dict[str, bytes] = {
    "a word that is no msgpack": b"\xc1",
    "a number": b"\x01",
    "an unknown command": msgspec.msgpack.encode({"op": "drop_table"}),
    "a map without a command": msgspec.msgpack.encode({"x": 1}),
    "a command cut short": msgspec.msgpack.encode({"op": "list_topics", "limit": 9})[:-1],
    "bytes behind a command": msgspec.msgpack.encode({"op": "list_topics"}) + b"\x00",
    "a text where a number belongs": msgspec.msgpack.encode({"op": "list_topics", "limit": "9"}),
    "a missing field": msgspec.msgpack.encode({"op": "create_topic"}),
    "a text that is no UTF-8": b"\x82\xa2op\xaclist_topics\xa7pattern\xa2\xff\xfe",
    "an array that claims 4 G items": b"\x82\xa2op\xa9subscribe\xabkey_filters\xdd\xff\xff\xff\xff",
    "a map that claims 4 G items": b"\xdf\xff\xff\xff\xff",
    "a text that claims 4 GB": b"\x82\xa2op\xaclist_topics\xa7pattern\xdb\xff\xff\xff\xff",
    "a hundred nested arrays": nested(100),
    "a million nested arrays": nested(1_000_000),
    "a reply of the broker": msgspec.msgpack.encode({"op": "done"}),
}


@pytest.mark.parametrize("body", GARBAGE.values(), ids=GARBAGE)
def test_a_command_that_is_none_ends_its_connection(target: Target, body: bytes) -> None:
    with attacked(target):
        raw = target.greeted()
        raw.send(header(len(body), Opcode.CONTROL, sequence=1), body)
        assert_refused(raw, ProtocolError)


def consumer(**changes: object) -> Command:
    fields: dict[str, object] = {
        "topic": "/default/misuse",
        "subscription": "s",
        "consumer": "c",
        "channel": 9,
    }
    return msgspec.convert(fields | changes, Subscribe)


MISUSES: dict[str, Command] = {
    "a channel in use by a producer": OpenProducer(topic="/default/other", name="p", channel=1),
    "a channel in use by a consumer": consumer(channel=2),
    "channel 0 for a producer": OpenProducer(topic="/default/misuse", name="p", channel=0),
    "a channel beyond the header's field": consumer(channel=2**32),
    "a negative channel": consumer(channel=-1),
    "an unknown subscription type": consumer(type="greedy"),
    "a filter with too many stars": consumer(key_filters=["*a*b*c*d*e*"]),
    "too many filters": consumer(key_filters=["x"] * 65),
}


@pytest.mark.parametrize("command", MISUSES.values(), ids=MISUSES)
def test_a_wrong_argument_is_refused_and_the_connection_survives(
    target: Target, command: Command
) -> None:
    with attacked(target), target.greeted() as raw:
        raw.open_producer("/default/misuse", channel=1)
        raw.subscribe("/default/misuse", "mine", channel=2)

        assert isinstance(raw.refusal(command), BadRequestError)

        raw.call(CloseConsumer(channel=2), Done)


def test_frames_for_channels_that_are_not_open_harm_nobody(target: Target) -> None:
    with attacked(target), target.greeted() as raw:
        raw.send(credit_frame(77, 1_000_000, 1_000_000))
        raw.call(CloseConsumer(channel=77), Done)
        raw.call(CloseProducer(channel=77), Done)
        raw.send(publish(b"x", channel=77, sequence=5))

        assert isinstance(refused_publish(raw, channel=77, sequence=5), BadRequestError)


# Batches


def refused_publish(raw: RawClient, *, channel: int = 1, sequence: int) -> IsterError:
    """Return the error that answers a publish; the connection stays open."""
    frame = raw.frame()
    assert frame is not None, "the connection was closed"
    assert frame[:3] == (Opcode.CONTROL, channel, sequence)
    command = decode_command(frame[3])
    assert isinstance(command, ErrorReply)
    return error_of(command)


def changed(position: int, value: bytes, *, fit_checksum: bool = True) -> bytes:
    """Return a batch of two messages with some of its bytes replaced."""
    batch = bytearray(b"".join(encode([b"one", b"two"], keys=["k", None], producer=b"p")))
    batch[position : position + len(value)] = value
    return resealed(batch) if fit_checksum else bytes(batch)


# Positions: docs/batch-format.md. The producer's name fills 64 to 72, the columns start there.
BAD_BATCHES: dict[str, bytes] = {
    "a wrong checksum": changed(16, b"\xff\xff\xff\xff", fit_checksum=False),
    "a flipped bit in a payload": changed(88, b"\x00", fit_checksum=False),
    "an unknown format version": changed(20, b"\x09"),
    "an unknown codec": changed(21, b"\x63"),
    "a codec that it is not packed with": changed(21, b"\x02"),
    "unknown columns": changed(22, b"\xff\xff"),
    "offsets of its own": changed(22, b"\x11\x00"),
    "no messages": changed(24, struct.pack("<I", 0)),
    "more messages than columns": changed(24, struct.pack("<I", 3)),
    "4 G messages": changed(24, struct.pack("<I", 0xFFFF_FFFF)),
    "columns longer than the batch": changed(28, struct.pack("<I", 0x00FF_FFFF)),
    "stored bytes past the end": changed(32, struct.pack("<I", 0xFFFF_FFF0)),
    "a name longer than the batch": changed(36, struct.pack("<H", 0xFFFF)),
    "payload offsets that fall": changed(72, struct.pack("<III", 0, 6, 3)),
    "payload offsets past the end": changed(72, struct.pack("<III", 0, 3, 0xFFFF_FFFF)),
    "payload offsets that do not start at 0": changed(72, struct.pack("<III", 2, 3, 6)),
    "another producer's name": changed(64, b"q"),
}


@pytest.mark.parametrize("batch", BAD_BATCHES.values(), ids=BAD_BATCHES)
def test_a_bad_batch_is_refused_and_the_connection_survives(target: Target, batch: bytes) -> None:
    with attacked(target), target.greeted() as raw:
        raw.open_producer("/default/bad")
        raw.send(*publish_frame(1, 5, batch[:64], batch[64:]))

        assert isinstance(refused_publish(raw, sequence=5), BadBatchError)

        raw.send(publish(b"good", sequence=6))
        frame = raw.frame()
        assert frame is not None
        assert frame[:3] == (Opcode.PUBLISHED, 1, 6)


@pytest.mark.parametrize("batch", [BAD_BATCHES["a wrong checksum"], encode([b"x"])[0] + b"x" * 8])
def test_a_bad_answer_ends_its_connection(target: Target, batch: bytes) -> None:
    with attacked(target):
        raw = target.greeted()
        raw.send(header(len(batch), Opcode.REPLY), batch)
        assert_refused(raw, BadBatchError)
