"""What clients in Rust (hyper, tonic) and Go (grpc-go) do on the wire, frame by frame."""

from collections.abc import Sequence
from contextlib import closing
from struct import Struct

import pytest
from tests.e2e.conftest import BrokerProcess
from tests.e2e.grpc.danubes import new_topic
from tests.e2e.grpc.peers import (
    ACK,
    CANCEL,
    DATA,
    END_HEADERS,
    END_STREAM,
    GOAWAY,
    HEADERS,
    PING,
    PREFACE,
    SETTINGS,
    Peer,
    enveloped,
    fields,
    frame,
    reset,
    settings,
    window,
)

from ister.server.grpc.messages import message

pytestmark = pytest.mark.e2e

CREATE, SEND = "/danube.ProducerService/CreateProducer", "/danube.ProducerService/SendMessage"
SUBSCRIBE = "/danube.ConsumerService/Subscribe"
RECEIVE = "/danube.ConsumerService/ReceiveMessages"
LOOKUP = "/danube.Discovery/TopicLookup"
# More than the windows that a client has at first.
LARGE = b"x" * 300_000
OK = {":status": "200", "content-type": "application/grpc", "grpc-status": "0"}

# hyper's settings and window, which tonic leaves as they are.
RUST = PREFACE + settings(s2=0, s4=2_097_152, s5=16_384, s6=16_384) + window(5_177_345)
# grpc-go sends no settings, and a window only if it is told to.
GO = PREFACE + settings()
# Others say how much they take before anything else, as much as there is.
HUGE = PREFACE + settings(s4=2**31 - 1, s3=0, s1=65_536) + window(2**31 - 1 - 65_535)


def rust_fields(path: str) -> list[tuple[str, str]]:
    first = [(":method", "POST"), (":scheme", "http"), (":path", path), (":authority", "b:6650")]
    last = [("te", "trailers"), ("content-type", "application/grpc")]
    return [*first, *last, ("user-agent", "tonic/0.14.2")]


def go_fields(path: str) -> list[tuple[str, str]]:
    first = [(":method", "POST"), (":scheme", "http"), (":path", path), (":authority", "b:6650")]
    last = [("content-type", "application/grpc"), ("user-agent", "grpc-go/1.76.0")]
    return [*first, *last, ("te", "trailers"), ("grpc-timeout", "4999820u")]


def shuffled_fields(path: str) -> list[tuple[str, str]]:
    first = [(":path", path), (":authority", "b"), (":method", "POST"), (":scheme", "https")]
    return [*first, ("te", "trailers"), ("cookie", "a"), ("cookie", "b"), *fields(path)[4:5]]


CLIENTS = {
    "rust": (RUST, rust_fields),
    "go": (GO, go_fields),
    "huge": (HUGE, shuffled_fields),
}


class Caller:
    """Calls as one of `CLIENTS` does, with the end of a request in a frame of its own."""

    def __init__(self, broker: BrokerProcess, name: str) -> None:
        words, self._fields = CLIENTS[name]
        self.peer = Peer(broker.grpc, words=words)

    def begin(self, path: str, request: str, **values: object) -> int:
        """Send a request, and return its stream."""
        peer, stream = self.peer, self.peer.next_stream()
        data = enveloped(message(request)(**values).SerializeToString())
        block = peer.encoder.encode(self._fields(path))
        peer.send(frame(HEADERS, END_HEADERS, stream, block))
        # In pieces, the first of which cuts the prefix.
        for part in (data[:3], data[3:]):
            for start in range(0, len(part), 16_384):
                peer.send(frame(DATA, 0, stream, part[start : start + 16_384]))
        peer.send(frame(DATA, END_STREAM, stream))
        return stream

    def call(self, path: str, request: str, **values: object) -> bytes:
        """Return the answer to a request."""
        found, body = self.peer.answer(self.begin(path, request, **values))
        assert found == OK
        assert Struct(">BI").unpack(body[:5]) == (0, len(body) - 5)
        return body[5:]

    def produce(self, topic: str) -> dict[str, object]:
        """Create a producer, and return what its messages begin with."""
        named = {"topic_name": topic, "producer_name": "p"}
        made = message("danube.ProducerResponse").FromString(
            self.call(CREATE, "danube.ProducerRequest", request_id=1, **named)
        )
        msg_id = {"producer_id": made.producer_id, "topic_name": topic}
        return {"request_id": 2, "msg_id": msg_id, "producer_name": "p"}

    def consume(self, topic: str) -> int:
        """Subscribe, and open the stream of messages."""
        named = {"topic_name": topic, "consumer_name": "c", "subscription": "s"}
        made = message("danube.ConsumerResponse").FromString(
            self.call(SUBSCRIBE, "danube.ConsumerRequest", request_id=3, **named)
        )
        return self.begin(RECEIVE, "danube.ReceiveRequest", consumer_id=made.consumer_id)


def payloads(body: bytes) -> list[bytes]:
    """Return what the whole messages in a part of a stream carry."""
    found = []
    while len(body) >= 5 and len(body) >= 5 + (size := int.from_bytes(body[1:5], "big")):
        found.append(message("danube.StreamMessage").FromString(body[5 : 5 + size]).payload)
        body = body[5 + size :]
    return found


def read_stream(peer: Peer, stream: int, count: int, *, ping: bool = False) -> list[bytes]:
    """Read so many messages, giving credit for each frame, and asking for the round trip."""
    body = b""
    while len(found := payloads(body)) < count:
        got = peer.frame()
        assert got is not None
        if got[0] == DATA and got[2] == stream:
            body += got[3]
            peer.send(window(len(got[3]), stream), window(len(got[3])))
            if ping:
                peer.send(frame(PING, 0, 0, bytes((2, 4, 16, 16, 9, 14, 7, 7))))
    return found


@pytest.mark.parametrize("name", CLIENTS)
def test_a_large_message_comes_through_windows_as_they_are_given(
    grpc_broker: BrokerProcess, name: str
) -> None:
    topic = new_topic()
    sender, caller = Caller(grpc_broker, "rust"), Caller(grpc_broker, name)
    with closing(sender.peer), closing(caller.peer) as peer:
        sent = sender.produce(topic)
        stream = caller.consume(topic)
        for payload in (b"small", LARGE, b""):
            sender.call(SEND, "danube.StreamMessage", **sent, payload=payload)

        assert read_stream(peer, stream, 3, ping=True) == [b"small", LARGE, b""]


@pytest.mark.parametrize("name", CLIENTS)
def test_dropping_a_stream_frees_its_consumer_and_hurts_no_other(
    grpc_broker: BrokerProcess, name: str
) -> None:
    topic = new_topic()
    caller = Caller(grpc_broker, name)
    with closing(caller.peer) as peer:
        sent = caller.produce(topic)
        for n in range(3):
            stream = caller.consume(topic)
            caller.call(SEND, "danube.StreamMessage", **sent, payload=b"%d" % n)
            peer.send(reset(stream, CANCEL))
            # What was on its way to a stream that is gone.
            peer.send(window(1_000, stream), reset(stream, CANCEL))

        assert caller.produce(topic) == sent


def test_settings_are_acknowledged_late_and_windows_changed_under_way(
    grpc_broker: BrokerProcess,
) -> None:
    topic = new_topic()
    caller = Caller(grpc_broker, "go")
    sender = Caller(grpc_broker, "rust")
    with closing(caller.peer) as peer, closing(sender.peer):
        sent = sender.produce(topic)
        stream = caller.consume(topic)
        peer.send(settings(s4=0))
        peer.wait_for(SETTINGS, flags=ACK)
        sender.call(SEND, "danube.StreamMessage", **sent, payload=LARGE)
        # Less than was sent already, then room for all of it.
        peer.send(settings(s4=1_000), settings(s4=10), settings(s4=1_000_000))
        peer.send(window(1_000_000), frame(SETTINGS, ACK))

        assert read_stream(peer, stream, 1) == [LARGE]


def answers_to(peer: Peer, encoded: Sequence[bytes]) -> list[str]:
    """Return the status of a lookup for each block of headers."""
    request = message("danube.TopicLookupRequest")(topic="/default/none").SerializeToString()
    found = []
    for block in encoded:
        stream = peer.next_stream()
        peer.send(frame(HEADERS, END_HEADERS, stream, block))
        peer.send(frame(DATA, END_STREAM, stream, enveloped(request)))
        found.append(peer.answer(stream)[0]["grpc-status"])
    return found


def test_tables_of_headers_change_their_size_under_way(grpc_broker: BrokerProcess) -> None:
    with closing(Peer(grpc_broker.grpc)) as peer:
        encoder, blocks = peer.encoder, []
        for size in (4_096, 0, 4_096, 200, 100, 4_096):
            encoder.header_table_size = size
            # Twice: the second refers to what the first has left in the table, if anything.
            blocks += [encoder.encode(rust_fields(LOOKUP)) for _ in range(2)]
            if size == 200:
                # Two changes before one block: the smallest is named as well.
                encoder.header_table_size = 0
                encoder.header_table_size = 4_096
                blocks.append(encoder.encode(rust_fields(LOOKUP)))

        assert answers_to(peer, blocks) == ["5"] * len(blocks)


def test_entries_of_the_table_mean_something_else_when_it_has_changed(
    grpc_broker: BrokerProcess,
) -> None:
    nothing = "/danube.Nothing/Nothing"
    with closing(Peer(grpc_broker.grpc)) as peer:
        encoder = peer.encoder
        blocks = [encoder.encode(fields(LOOKUP)) for _ in range(3)]
        blocks += [encoder.encode(fields(nothing)) for _ in range(3)]
        blocks += [encoder.encode(fields(LOOKUP)) for _ in range(3)]

        assert answers_to(peer, blocks) == ["5"] * 3 + ["12"] * 3 + ["5"] * 3


def test_a_client_s_own_goodbye_lets_its_calls_end(grpc_broker: BrokerProcess) -> None:
    caller = Caller(grpc_broker, "rust")
    with closing(caller.peer) as peer:
        topic = new_topic()
        stream = caller.begin(
            CREATE, "danube.ProducerRequest", request_id=1, topic_name=topic, producer_name="p"
        )
        peer.send(frame(GOAWAY, 0, 0, bytes(8)))

        assert peer.answer(stream)[0] == OK


def test_pings_are_answered_before_the_calls_behind_them(grpc_broker: BrokerProcess) -> None:
    with closing(Peer(grpc_broker.grpc)) as peer:
        for n in range(100):
            peer.send(frame(PING, 0, 0, b"%08d" % n))

            assert peer.wait_for(PING, flags=ACK) == b"%08d" % n
