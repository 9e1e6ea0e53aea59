"""Every limit of a broker that a user can hit says its name, and nothing is lost but the excess."""

from collections.abc import AsyncIterator, Iterator
from dataclasses import fields

import pytest
from tests.e2e.conftest import BrokerProcess, StartBroker
from tests.e2e.raw import WAIT_S, RawClient, header, publish

import ister
from ister.base.errors import (
    BatchTooLargeError,
    IsterError,
    LimitReachedError,
    MessageTooLargeError,
    NotConnectedError,
    ProtocolError,
)
from ister.base.limits import BATCH_BYTES_EXCESS, KIB, MIB, Limits
from ister.codec import Codec, available, encode
from ister.wire import (
    CreateNamespace,
    CreateTopic,
    Done,
    ErrorReply,
    Opcode,
    OpenProducer,
    Subscribe,
    decode_command,
    error_of,
    publish_frame,
)

pytestmark = pytest.mark.e2e

TINY = Limits(
    message_bytes_max=64 * KIB,
    batch_bytes_max=1 * MIB,
    topics_max=6,
    namespaces_max=2,
    subscriptions_max=4,
    consumers_per_subscription_max=2,
    connections_max=8,
    handshakes_max=4,
    producers_per_connection_max=2,
    consumers_per_connection_max=3,
    queue_bytes_max=256 * KIB,
    queue_count_max=50,
    queues_bytes_max=512 * KIB,
)
HIT_ELSEWHERE = {
    # Dropping is no error: test_slow_consumer.py.
    "queue_bytes_max",
    "queue_count_max",
    "queues_bytes_max",
    # Forgetting is not an error: tests/unit/broker/test_idwindow.py and test_producers.py.
    "message_ids_max",
    "producers_bytes_max",
    # tests/unit/broker/test_keyoffsets.py.
    "key_offsets_max",
    # Of wildcard subscriptions on streams: tests/unit/broker/test_many_topics.py.
    "covered_topics_max",
    "topics_per_subscription_max",
    "wildcards_max",
}
TOPIC = "/default/limited"


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    """A broker where every limit is near."""
    args = [f"--limit={one.name}={getattr(TINY, one.name)}" for one in fields(Limits)]
    broker = BrokerProcess(tmp_path_factory.mktemp("tiny"), args)
    broker.start()
    yield broker
    broker.kill()


@pytest.fixture
async def client(tiny: BrokerProcess) -> AsyncIterator[ister.Client]:
    """A client of the broker, on which there are no topics yet."""
    async with ister.connect(tiny.url, timeout=WAIT_S) as client:
        for topic in {report.topic.partition("-part-")[0] for report in await client.topics()}:
            await client.delete_topic(topic)
        yield client


def named(error: IsterError | None, limit: str) -> bool:
    """Whether an error is the one of a limit, with its name and value."""
    return (
        isinstance(error, LimitReachedError)
        and (error.limit, error.value) == (limit, getattr(TINY, limit))
        and limit in str(error)
    )


def test_every_limit_is_tested() -> None:
    tested = {name.removeprefix("test_").partition("_is_")[0] for name in globals()}

    assert {one.name for one in fields(Limits)} - HIT_ELSEWHERE <= tested


async def test_message_bytes_max_is_told_by_the_client_before_it_sends(
    client: ister.Client,
) -> None:
    async with client.producer(TOPIC) as producer:
        await producer.send(b"x" * TINY.message_bytes_max)

        with pytest.raises(MessageTooLargeError, match="message_bytes_max"):
            await producer.send(b"x" * (TINY.message_bytes_max + 1))


async def test_message_bytes_max_is_checked_by_the_broker(
    tiny: BrokerProcess, client: ister.Client
) -> None:
    with RawClient(tiny) as raw:
        raw.greet()
        raw.open_producer(TOPIC)
        raw.send(publish(b"x" * TINY.message_bytes_max, sequence=1))
        accepted = raw.frame()
        raw.send(publish(b"x" * (TINY.message_bytes_max + 1), sequence=2))

        assert accepted is not None
        assert accepted[0] == Opcode.PUBLISHED
        error = publish_error(raw)
        assert isinstance(error, MessageTooLargeError)
        assert error.size_bytes_max == TINY.message_bytes_max


async def test_batch_bytes_max_is_told_and_the_connection_survives(
    tiny: BrokerProcess, client: ister.Client
) -> None:
    with RawClient(tiny) as raw:
        raw.greet()
        raw.open_producer(TOPIC)
        raw.send(publish(*[bytes(60 * KIB)] * 18))
        error = publish_error(raw)
        raw.send(publish(b"small", sequence=2))
        accepted = raw.frame()

    assert isinstance(error, BatchTooLargeError)
    assert error.size_bytes_max == TINY.batch_bytes_max
    assert accepted is not None
    assert accepted[0] == Opcode.PUBLISHED


async def test_a_client_makes_batches_no_larger_than_the_broker_takes(
    start_broker: StartBroker,
) -> None:
    broker = start_broker(
        "--limit", "batch_bytes_max=64KiB", "--limit", f"message_bytes_max={32 * KIB}"
    )
    async with ister.connect(broker.url) as client, client.producer(TOPIC) as producer:
        ids = await producer.send_batch([bytes(20 * KIB)] * 20)

    assert [mid.offset for mid in ids] == list(range(20))


async def test_a_frame_far_above_batch_bytes_max_ends_its_connection(tiny: BrokerProcess) -> None:
    with RawClient(tiny) as raw:
        raw.greet()
        raw.send(header(TINY.batch_bytes_max + BATCH_BYTES_EXCESS + 1, Opcode.PUBLISH, channel=1))

        assert isinstance(raw.farewell(), ProtocolError)


@pytest.mark.skipif(Codec.LZ4 not in available(), reason="lz4 is not installed")
async def test_batch_bytes_max_is_also_that_of_the_unpacked_batch(
    tiny: BrokerProcess, client: ister.Client
) -> None:
    with RawClient(tiny) as raw:
        raw.greet()
        raw.open_producer(TOPIC)
        head, body = encode([bytes(60 * KIB)] * 18, producer=b"p", codec=Codec.LZ4)
        raw.send(*publish_frame(1, 1, head, body))

        error = publish_error(raw)

    assert isinstance(error, BatchTooLargeError)
    assert "batch_bytes_max" in str(error)


async def test_batch_bytes_max_is_never_met_by_a_client_that_sends_at_once(
    client: ister.Client,
) -> None:
    count = 5 * TINY.batch_bytes_max // (10 * KIB)
    async with client.producer(TOPIC) as producer:
        ids = await producer.send_batch([b"x" * 10 * KIB] * count)
        more = [producer.send_nowait(b"x" * 10 * KIB, key="k") for _ in range(count)]
        last = await more[-1]

    assert [one.offset for one in ids] == list(range(count))
    assert last.offset == 2 * count - 1


async def test_topics_max_is_told(client: ister.Client) -> None:
    for number in range(TINY.topics_max):
        await client.create_topic(f"/default/t{number}")

    for use in (
        client.create_topic("/default/more"),
        client.producer("/default/more").open(),
        client.subscribe("/default/more", "s").open(),
    ):
        with pytest.raises(LimitReachedError) as caught:
            await use
        assert named(caught.value, "topics_max")


async def test_topics_max_is_counted_in_partitions(client: ister.Client) -> None:
    await client.create_topic("/default/p", partitions=TINY.topics_max)

    with pytest.raises(LimitReachedError, match="topics_max"):
        await client.create_topic("/default/more")
    await client.delete_topic("/default/p")
    await client.create_topic("/default/more")


async def test_namespaces_max_is_told(tiny: BrokerProcess) -> None:
    with RawClient(tiny) as raw:
        raw.greet()
        raw.call(CreateNamespace(namespace="second"), Done)

        assert named(raw.refusal(CreateNamespace(namespace="third")), "namespaces_max")


async def test_subscriptions_max_is_told_and_freed_when_one_ends(client: ister.Client) -> None:
    # A subscription ends with its last consumer, and a connection may have three.
    async with ister.connect(client.url) as other:
        subs = [
            (other if number % 2 else client).subscribe(TOPIC, f"s{number}")
            for number in range(TINY.subscriptions_max)
        ]
        for sub in subs:
            await sub.open()

        with pytest.raises(LimitReachedError) as caught:
            await client.subscribe(TOPIC, "more").open()

        assert named(caught.value, "subscriptions_max")
        await subs[0].close()
        async with client.subscribe(TOPIC, "more"):
            pass


async def test_consumers_per_subscription_max_is_told(client: ister.Client) -> None:
    async with (
        client.subscribe(TOPIC, "s", type="shared"),
        client.subscribe(TOPIC, "s", type="shared"),
    ):
        with pytest.raises(LimitReachedError) as caught:
            await client.subscribe(TOPIC, "s", type="shared").open()

    assert named(caught.value, "consumers_per_subscription_max")


async def test_producers_per_connection_max_is_told_and_freed_by_closing(
    client: ister.Client,
) -> None:
    async with client.producer(TOPIC) as first, client.producer(TOPIC):
        with pytest.raises(LimitReachedError) as caught:
            await client.producer(TOPIC).open()

        assert named(caught.value, "producers_per_connection_max")
        await first.close()
        async with client.producer(TOPIC) as third:
            await third.send(b"x")


async def test_consumers_per_connection_max_is_told(tiny: BrokerProcess) -> None:
    with RawClient(tiny) as raw:
        raw.greet()
        for number in range(TINY.consumers_per_connection_max):
            raw.subscribe(TOPIC, f"s{number}", channel=number + 1)

        more = Subscribe(topic=TOPIC, subscription="s9", consumer="c", channel=9)
        assert named(raw.refusal(more), "consumers_per_connection_max")
        # A producer is none of them.
        raw.open_producer(TOPIC, channel=9)


async def test_connections_max_is_told_to_whoever_is_too_many(tiny: BrokerProcess) -> None:
    clients = []
    for _ in range(TINY.connections_max):
        client = ister.connect(tiny.url)
        await client.open()
        clients.append(client)
    try:
        with RawClient(tiny) as raw:
            assert named(raw.farewell(), "connections_max")
        with pytest.raises(NotConnectedError, match="connections_max"):
            await ister.connect(tiny.url, connect_timeout=0).open()
        assert (await clients[0].broker()).connections <= TINY.connections_max + 1
    finally:
        for client in clients:
            await client.close()


async def test_handshakes_max_is_told_to_the_oldest(tiny: BrokerProcess) -> None:
    raws = [RawClient(tiny) for _ in range(TINY.handshakes_max + 1)]
    try:
        assert named(raws[0].farewell(), "handshakes_max")
        raws[1].greet()
    finally:
        for raw in raws:
            raw.close()


async def test_a_raised_limit_is_obeyed(start_broker: StartBroker) -> None:
    broker = start_broker("--limit", "message_bytes_max=20MiB", "--limit", "batch_bytes_max=32MiB")
    payload = bytes(20 * MIB)
    async with (
        ister.connect(broker.url) as client,
        client.subscribe(TOPIC, "s") as sub,
        client.producer(TOPIC) as producer,
    ):
        await producer.send(payload)

        assert (await sub.receive(WAIT_S)).payload == payload
        with pytest.raises(MessageTooLargeError):
            await producer.send(payload + b"x")


def publish_error(raw: RawClient) -> IsterError:
    """Return the error that answers a publish."""
    frame = raw.frame()
    assert frame is not None, "the connection was closed"
    command = decode_command(frame[3])
    assert isinstance(command, ErrorReply)
    return error_of(command)


async def test_a_refused_command_leaves_nothing_behind(
    tiny: BrokerProcess, client: ister.Client
) -> None:
    with RawClient(tiny) as raw:
        raw.greet()
        for number in range(TINY.topics_max):
            raw.call(CreateTopic(topic=f"/default/left{number}"), Done)
        for _ in range(3):
            refused = OpenProducer(topic="/default/more", name="p", channel=5)
            assert named(raw.refusal(refused), "topics_max")

        # The channel and the connection's own count are free.
        raw.open_producer("/default/left0", channel=5)
