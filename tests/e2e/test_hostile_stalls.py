"""How long an honest client waits for its broker while another does its worst.

Waits are counted in processor time of the broker, so that a busy machine changes nothing: see
`watched_broker.py`. Each of these cases took seconds, or most of one, before it was mended.
"""

import json
import selectors
import socket
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from http.client import HTTPConnection
from typing import Any

import grpc
import msgspec
import pytest
from tests.e2e.raw import WAIT_S, RawClient
from tests.e2e.watching import WatchedBroker, trials, watched_broker
from tests.unit.schemas.hostile import avro_doubling, avro_record, container

from ister.base import EARLIEST, Origin, Position
from ister.base.limits import (
    ATTRIBUTES_COUNT_MAX,
    BATCH_IDS_MAX,
    MESSAGE_ID_BYTES_MAX,
    MIB,
    TRANSACTION_IDS_MAX,
)
from ister.codec import encode
from ister.schemas.bounds import PAYLOAD_VALUES_MAX
from ister.server.grpc.messages import message
from ister.server.http.bodies import BODY_BYTES_MAX
from ister.server.http.door import BODY_CHUNKS_MAX
from ister.wire import (
    LEASE,
    BeginTransaction,
    BindSchema,
    BrokerDescription,
    CommitTransaction,
    CreateTopic,
    DescribeBroker,
    Done,
    ListTopics,
    Opcode,
    OpenProducer,
    ProducerOpened,
    RegisterSchema,
    SaveCursor,
    SchemaBound,
    SchemaRegistered,
    Seek,
    Subscribe,
    Subscribed,
    TransactionCommitted,
    ack_frames,
    control_frame,
    credit_frame,
    decode_command,
    publish_frame,
    timed_ack_frames,
)

pytestmark = pytest.mark.e2e

MESSAGES = 100_000
CONSUMERS = 1_500
TOPICS = 5_000
# The number of a request that is answered after all others.
SETTLED = 4_711


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[WatchedBroker]:
    with watched_broker(tmp_path_factory.mktemp("stalls")) as broker:
        yield broker


def settled(client: RawClient) -> int:
    """Wait until the broker has dealt with what was sent, and return how many subscriptions it has.

    It answers in order. Errors among the answers are what attackers get.
    """
    client.send(control_frame(DescribeBroker(), sequence=SETTLED))
    while (frame := client.frame()) is not None and frame[2] != SETTLED:
        pass
    assert frame is not None
    answer = decode_command(frame[3])
    assert isinstance(answer, BrokerDescription)
    return answer.report.subscriptions


def leased(client: RawClient, name: str) -> list[tuple[int, int]]:
    """Fill a stream, have all of it delivered, and return the leases with their first offsets."""
    topic = f"/default/{name}"
    client.call(CreateTopic(topic=topic, kind="stream"), Done)
    client.call(OpenProducer(topic=topic, name=name, channel=10), ProducerOpened)
    for first in range(0, MESSAGES, 10_000):
        head, body = encode([b""] * 10_000, producer=name.encode(), first_sequence=first + 1)
        client.send(*publish_frame(10, 1, head, body))
        while (frame := client.frame()) is not None and frame[0] != Opcode.PUBLISHED:
            pass
    wanted = Subscribe(
        topic=topic, subscription="s", consumer="c", channel=11, type="shared", start=EARLIEST
    )
    client.call(wanted, Subscribed)
    client.send(credit_frame(11, MESSAGES, 2**31 - 1))
    leases = []
    for first in range(0, MESSAGES, 10_000):
        while (frame := client.frame()) is not None and frame[0] != Opcode.DELIVER_LEASED:
            pass
        assert frame is not None
        leases.append((LEASE.unpack_from(frame[3])[0], first))
    return leases


@pytest.mark.parametrize("opcode", [Opcode.ACK, Opcode.NACK, Opcode.EXTEND])
def test_runs_across_many_gaps(broker: WatchedBroker, opcode: int) -> None:
    for trial in trials(broker):
        with broker.greeted() as client:
            leases = leased(client, f"gaps.{opcode}.{trial.number}")
            for number, first in leases:
                runs = [(number, o, o + 1) for o in range(first, first + 10_000, 2)]
                client.send(*ack_frames(11, runs))
            settled(client)
            evil = [(leases[0][0], 0, MESSAGES)] * 1_024
            if opcode == Opcode.ACK:
                frames = ack_frames(11, evil, sequence=5)
            else:
                timed = [(*run, 1_000) for run in evil]
                frames = timed_ack_frames(11, timed, opcode=opcode, sequence=5)
            with trial:
                client.send(*frames)
                settled(client)


def test_globs_of_question_marks(broker: WatchedBroker) -> None:
    globs = ["*" + "?" * 4_000 + str(number) for number in range(16)]
    head, body = encode([b""] * 64, keys=["a" * 4_096] * 64, producer=b"p", first_sequence=1)
    for trial in trials(broker):
        topic = f"/default/globs.{trial.number}"
        with broker.greeted() as client:
            client.open_producer(topic)
            wanted = Subscribe(
                topic=topic, subscription="s", consumer="c", channel=2, key_filters=globs
            )
            client.call(wanted, Subscribed)
            with trial:
                client.send(*publish_frame(1, 1, head, body))
                settled(client)


def test_a_crowd_of_a_key_shared_subscription_comes_and_goes(broker: WatchedBroker) -> None:
    for trial in trials(broker):
        commands = [
            Subscribe(
                topic=f"/default/crowd.{trial.number}",
                subscription="s",
                consumer=f"c{channel}",
                channel=channel,
                type="key_shared",
            )
            for channel in range(1, CONSUMERS + 1)
        ]
        with broker.greeted() as other:
            before = settled(other)
            with trial:
                with broker.greeted() as client:
                    client.send(*[control_frame(command, sequence=1) for command in commands])
                    settled(client)
                # They leave over several turns of the loop.
                while settled(other) > before:
                    pass


# A full garbage collection over so many topics takes longer than a turn may.
@pytest.mark.slow
def test_wildcards_and_listings_over_many_topics(broker: WatchedBroker) -> None:
    for trial in trials(broker):
        start = f"/default/w{trial.number}"
        creating = [CreateTopic(topic=f"{start}.{n}", kind="stream") for n in range(TOPICS)]
        subscribing = [
            Subscribe(topic=f"{start}.*", subscription=f"s{n}", consumer="c", channel=n + 1)
            for n in range(3)
        ]
        with broker.greeted() as client:
            client.send(*[control_frame(command, sequence=1) for command in creating])
            settled(client)
            with trial:
                client.send(*[control_frame(command, sequence=1) for command in subscribing])
                client.send(control_frame(ListTopics(limit=1_000), sequence=1) * 50)
                settled(client)


def test_seeking_and_saving_cursors_over_many_topics(broker: WatchedBroker) -> None:
    for trial in trials(broker):
        start = f"/default/moved.{trial.number}"
        wild = f"{start}.*"
        with broker.greeted() as client:
            client.call(CreateTopic(topic=f"{start}.0", kind="stream"), Done)
            client.call(
                Subscribe(topic=wild, subscription="s", consumer="c", channel=1), Subscribed
            )
            for number in range(1, 1 + TOPICS // 1_000):
                creating = CreateTopic(topic=f"{start}.{number}", kind="stream", partitions=1_000)
                client.call(creating, Done)
            with trial:
                client.call(SaveCursor(topic=wild, subscription="s", name="then"), Done)
                client.call(Seek(topic=wild, subscription="s", to=EARLIEST), Done)
                back = Position(origin=Origin.SNAPSHOT, name="then")
                client.call(Seek(topic=wild, subscription="s", to=back), Done)


# Message ids


@pytest.mark.parametrize("length", [8, MESSAGE_ID_BYTES_MAX])
def test_transactions_with_as_many_ids_as_they_may_have(broker: WatchedBroker, length: int) -> None:
    for trial in trials(broker):
        topic = f"/default/ids.{length}.{trial.number}"
        ids = [f"{n}".rjust(length, "i") for n in range(TRANSACTION_IDS_MAX)]
        batch = encode([b""] * len(ids), ids=ids, producer=b"p")
        with broker.greeted() as client:
            client.call(CreateTopic(topic=topic, kind="stream"), Done)
            with trial:
                # The ids of the second are known by then.
                for word in ("first", "second"):
                    begin = BeginTransaction(channel=5, transaction=f"{topic} {word}")
                    client.call(begin, Done)
                    client.send(*publish_frame(5, 0, *batch, opcode=Opcode.STAGE))
                    client.call(CommitTransaction(channel=5, topics=[topic]), TransactionCommitted)


def test_batches_with_as_many_ids_as_they_may_have(broker: WatchedBroker) -> None:
    for trial in trials(broker):
        topic = f"/default/ids.batch.{trial.number}"
        with broker.greeted() as client:
            client.call(CreateTopic(topic=topic, kind="stream"), Done)
            client.open_producer(topic)
            with trial:
                for start in (0, BATCH_IDS_MAX, BATCH_IDS_MAX // 2):
                    ids = [f"{n}" for n in range(start, start + BATCH_IDS_MAX)]
                    client.send(
                        *publish_frame(1, 1, *encode([b""] * len(ids), ids=ids, producer=b"p"))
                    )
                    assert client.frame() is not None


# HTTP


def test_a_body_of_too_many_chunks_is_refused(broker: WatchedBroker) -> None:
    host, _, port = broker.http.rpartition(":")
    head = (
        "POST /api/v1/namespaces/default/topics/chunks/messages HTTP/1.1\r\n"
        "Host: 127.0.0.1\r\nContent-Type: application/json\r\nConnection: close\r\n"
        "Transfer-Encoding: chunked\r\n\r\n"
    )
    for chunks in (BODY_CHUNKS_MAX, BODY_CHUNKS_MAX + 1):
        with socket.create_connection((host, int(port)), timeout=WAIT_S) as line:
            line.sendall(head.encode() + b"1\r\n[\r\n" * chunks + b"0\r\n\r\n")
            # Head and body may come apart.
            answer = b"".join(iter(lambda: line.recv(65_536), b"")).decode()
        # A body that is read is refused by who looks at it, as JSON.
        refused = "Invalid HTTP request received." in answer
        assert answer.startswith("HTTP/1.1 400 ")
        assert refused is (chunks > BODY_CHUNKS_MAX)


def ask_in_chunks(broker: WatchedBroker, *, connections: int, requests: int) -> None:
    """Send requests whose bodies come in chunks of a byte, and wait for all answers."""
    host, _, port = broker.http.rpartition(":")
    head = (
        "POST /api/v1/namespaces/default/topics/chunks/messages HTTP/1.1\r\n"
        "Host: 127.0.0.1\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n"
    )
    data = (head.encode() + b"1\r\nx\r\n" * (BODY_CHUNKS_MAX - 1) + b"0\r\n\r\n") * requests
    unsent: dict[socket.socket, memoryview] = {}
    unanswered: dict[socket.socket, int] = {}
    with selectors.DefaultSelector() as selector:
        for _ in range(connections):
            line = socket.create_connection((host, int(port)), timeout=WAIT_S)
            line.setblocking(False)
            selector.register(line, selectors.EVENT_READ | selectors.EVENT_WRITE, line)
            unsent[line], unanswered[line] = memoryview(data), requests
        while unanswered:
            for key, events in selector.select(WAIT_S):
                line = key.data
                if events & selectors.EVENT_READ:
                    answer = line.recv(65_536)
                    assert answer, "the broker has closed the connection"
                    unanswered[line] -= answer.count(b"HTTP/1.1 ")
                elif unsent[line]:
                    unsent[line] = unsent[line][line.send(unsent[line]) :]
                if not unsent[line]:
                    selector.modify(line, selectors.EVENT_READ, line)
                if not unanswered[line]:
                    selector.unregister(line)
                    line.close()
                    del unanswered[line]


@pytest.mark.parametrize("connections", [2, 8])
def test_bodies_in_chunks_of_a_byte(broker: WatchedBroker, connections: int) -> None:
    for trial in trials(broker):
        with trial:
            ask_in_chunks(broker, connections=connections, requests=16 // connections)


MESSAGES_PATH = "/api/v1/namespaces/default/topics/large.{}/messages"
# A body has 2 MiB; besides its texts, 64 KiB.
LARGE_BODIES = {
    "text": {"payload": "x" * (BODY_BYTES_MAX - 100)},
    "escapes": {"payload": "\n" * (BODY_BYTES_MAX // 2 - 100)},
    "controls": {"payload": "\0" * (BODY_BYTES_MAX // 6 - 100)},
    "letters": {"payload": "\N{EURO SIGN}" * (BODY_BYTES_MAX // 3 - 100)},
    "base64": {"payload": "AAAA" * (BODY_BYTES_MAX // 4 - 100), "encoding": "base64"},
    "bad base64": {"payload": "AAA\n" * (BODY_BYTES_MAX // 5 - 100), "encoding": "base64"},
    "attributes": {
        "payload": "x" * (BODY_BYTES_MAX - 70_000),
        "attributes": {f"{n}": "x" * 490 for n in range(ATTRIBUTES_COUNT_MAX)},
    },
}


@pytest.mark.parametrize("case", LARGE_BODIES)
@pytest.mark.parametrize("kind", ["live", "stream"])
def test_publishing_the_largest_message_by_http(
    broker: WatchedBroker, case: str, kind: str
) -> None:
    body = msgspec.json.encode(LARGE_BODIES[case])
    topic = f"{case.replace(' ', '-')}.{kind}"
    with broker.greeted() as client:
        client.call(CreateTopic(topic=f"/default/large.{topic}", kind=kind), Done)
    for trial in trials(broker):
        with trial:
            for _ in range(3):
                line = HTTPConnection(broker.http, timeout=WAIT_S)
                headers = {"content-type": "application/json"}
                line.request("POST", MESSAGES_PATH.format(topic), body, headers)
                assert line.getresponse().status in (200, 400)
                line.close()


def test_looking_at_the_largest_messages_by_http(broker: WatchedBroker) -> None:
    topic = "/default/large.peeked"
    with broker.greeted() as client:
        client.call(CreateTopic(topic=topic, kind="stream"), Done)
        client.open_producer(topic)
        for sequence in range(4):
            batch = encode([b"\xff" * MIB], producer=b"p", first_sequence=sequence)
            client.send(*publish_frame(1, 1, *batch))
            assert client.frame() is not None
    for trial in trials(broker):
        with trial:
            line = HTTPConnection(broker.http, timeout=WAIT_S)
            line.request("GET", MESSAGES_PATH.format("peeked") + "?limit=100")
            assert len(line.getresponse().read()) > MIB
            line.close()


# gRPC


def large_message(case: str) -> dict[str, Any]:
    """Return the fields of a message of about 4 MiB."""
    match case:
        case "payload":
            return {"payload": b"x" * (4 * MIB - 4_096)}
        case "attributes":
            return {"attributes": {f"{n}": "x" * 8_000 for n in range(ATTRIBUTES_COUNT_MAX)}}
        case _:
            return {"attributes": {f"{n}": "" for n in range(300_000)}}


@pytest.mark.parametrize("case", ["payload", "attributes", "too many attributes"])
@pytest.mark.parametrize("strategy", [0, 1], ids=["live", "stream"])
def test_publishing_the_largest_message_by_grpc(
    broker: WatchedBroker, case: str, strategy: int
) -> None:
    topic = f"/default/grpc.{case.replace(' ', '-')}.{strategy}"
    creating = message("danube.ProducerRequest")(
        request_id=1, producer_name="p", topic_name=topic, dispatch_strategy=strategy
    )
    with grpc.insecure_channel(broker.grpc) as channel:
        service = "/danube.ProducerService/"
        made = channel.unary_unary(f"{service}CreateProducer")(creating.SerializeToString())
        producer_id = message("danube.ProducerResponse").FromString(made).producer_id
        sending = message("danube.StreamMessage")(
            request_id=2,
            msg_id={"producer_id": producer_id, "topic_name": topic},
            producer_name="p",
            **large_message(case),
        ).SerializeToString()
        send = channel.unary_unary(f"{service}SendMessage")
        for trial in trials(broker):
            with trial:
                for _ in range(3):
                    with suppress(grpc.RpcError):
                        send(sending, timeout=WAIT_S)


# Schemas


def numbers(text: str, count: int) -> bytes:
    return f"[{','.join([text] * count)}]".encode()


def names(count: int) -> bytes:
    return json.dumps({f"k{n}": n for n in range(count)}, separators=(",", ":")).encode()


def avro_of(slot: int, fields: int) -> bytes:
    """Return a container whose schema nobody has seen before."""
    return container(
        json.dumps(avro_record(**{f"f{slot}_{n}": "int" for n in range(fields)})).encode()
    )


MULTIPLES = {"items": {"multipleOf": 1e-300}}
INT_RECORD = {
    "type": "record",
    "name": "R",
    "fields": [{"name": "a", "type": "int", "default": 0}],
}
# Some 400 bytes. It took 3 seconds, and twice as long with each level more.
DOUBLING = container(json.dumps(avro_doubling(32), separators=(",", ":")).encode())
HOSTILE_SCHEMAS = {
    "avro doubling": ("avro", avro_doubling(50)),
    "avro unions": (
        "avro",
        [{"type": "fixed", "name": f"F{n}", "size": 1} for n in range(4_000)],
    ),
    "json multiples": ("json", MULTIPLES),
    "json choices": ("json", {"anyOf": [{"enum": [{"a": n}] * 2} for n in range(1_000)]}),
    "proto fields": (
        "proto",
        "message A {" + "".join(f"optional int32 a{n}={n};" for n in range(1, 15_000)) + "}",
    ),
}
HOSTILE_MESSAGES = {
    "doubling defaults": ("avro", INT_RECORD, [DOUBLING] * 8),
    "containers": ("avro", INT_RECORD, [avro_of(n, 4_000) for n in range(24)]),
    "small containers": ("avro", INT_RECORD, [avro_of(n, 25) for n in range(1_000)]),
    "multiples": ("json", MULTIPLES, [numbers("1e300", 10_000)] * 4),
    "few multiples": ("json", MULTIPLES, [numbers("1e300", 150)] * 60),
    "a long number": ("json", {"multipleOf": 1e-300}, [b"9" * 1_000_000]),
    # Half of what is allowed, which takes 48 ms: that leaves no room for a busy machine.
    "very many values": ("json", {"type": "array"}, [numbers("1e308", PAYLOAD_VALUES_MAX // 2)]),
    "very many arrays": ("json", {"type": "array"}, [numbers("[]", PAYLOAD_VALUES_MAX // 2)]),
    "a long text": ("json", {"type": "object"}, [json.dumps({"a": '",' * 2_000_000}).encode()]),
    "very many names": ("json", {"type": "object"}, [names(PAYLOAD_VALUES_MAX)]),
    "very many texts": ("json", {"items": {"pattern": "a"}}, [numbers('"b"', 40_000)]),
    "very many bounds": (
        "json",
        {"items": {"allOf": [{"minimum": -n} for n in range(20)]}},
        [numbers("1e308", 1_500), numbers("50", 20_000)],
    ),
}


def definition_of(schema: object) -> bytes:
    return (schema if isinstance(schema, str) else json.dumps(schema)).encode()


@pytest.mark.parametrize("case", HOSTILE_SCHEMAS)
def test_registering_hostile_schemas(broker: WatchedBroker, case: str) -> None:
    kind, schema = HOSTILE_SCHEMAS[case]
    for trial in trials(broker):
        wanted = RegisterSchema(
            subject=f"{case.replace(' ', '-')}-{trial.number}",
            type=kind,
            definition=definition_of(schema),
        )
        with broker.greeted() as client, trial:
            client.send(control_frame(wanted, sequence=7))
            while (frame := client.frame()) is not None and frame[2] != 7:
                pass
            assert frame is not None


@pytest.mark.parametrize("case", HOSTILE_MESSAGES)
def test_publishing_messages_that_are_hard_to_check(broker: WatchedBroker, case: str) -> None:
    kind, schema, payloads = HOSTILE_MESSAGES[case]
    for trial in trials(broker):
        name = f"{case.replace(' ', '-')}-{trial.number}"
        topic = f"/default/checked.{name}"
        with broker.greeted() as client:
            wanted = RegisterSchema(subject=name, type=kind, definition=definition_of(schema))
            made = client.call(wanted, SchemaRegistered)
            client.call(BindSchema(topic=topic, subject=name), SchemaBound)
            client.open_producer(topic)
            ids = (made.schema_id, made.version)
            with trial:
                # Each by itself, then all at once.
                for some in ([one] for one in payloads):
                    client.send(*publish_frame(1, 1, *encode(some, producer=b"p", schema=ids)))
                client.send(*publish_frame(1, 1, *encode(payloads, producer=b"p", schema=ids)))
                settled(client)


def test_many_peers_whose_messages_are_hard_to_check(broker: WatchedBroker) -> None:
    """Threads that check keep the interpreter from the event loop, each for a while."""
    peers = 8
    payloads = [avro_of(n, 4_000) for n in range(4)]
    for trial in trials(broker):
        name = f"peers-{trial.number}"
        topic = f"/default/checked.{name}"
        with ExitStack() as stack:
            clients = [stack.enter_context(broker.greeted()) for _ in range(peers)]
            wanted = RegisterSchema(subject=name, type="avro", definition=definition_of(INT_RECORD))
            made = clients[0].call(wanted, SchemaRegistered)
            clients[0].call(BindSchema(topic=topic, subject=name), SchemaBound)
            for number, client in enumerate(clients):
                opened = OpenProducer(topic=topic, name=f"p{number}", channel=1)
                client.call(opened, ProducerOpened)
            with trial:
                for number, client in enumerate(clients):
                    batch = encode(
                        [one + bytes([number]) for one in payloads],
                        producer=f"p{number}".encode(),
                        schema=(made.schema_id, made.version),
                    )
                    client.send(*publish_frame(1, 1, *batch))
                for client in clients:
                    settled(client)
