"""Cases of one request that concerns as much as one connection may have.

Each was found by an audit, and took 0.1 to 0.4 s in one turn of the event loop.
"""

from collections.abc import Callable

import msgspec
from tests.fuzz.stalling import Ground, Peer, Turn, repeated, without_collector

from ister.base import EARLIEST, partition_name
from ister.base.limits import (
    MESSAGE_ID_BYTES_MAX,
    PARTITIONS_MAX,
    TRANSACTION_BATCHES_MAX,
    TRANSACTION_IDS_MAX,
    TRANSACTION_TOPICS_MAX,
)
from ister.codec import encode
from ister.wire import (
    BeginTransaction,
    Command,
    CommitTransaction,
    CreateTopic,
    DeleteTopic,
    Opcode,
    OpenReader,
    Subscribe,
    credit_frame,
    publish_frame,
)

TOPIC = "/default/crowd"
# Just below `consumers_per_connection_max`.
CHANNELS = 9_990


def crowded(case: Callable[[Ground, Peer], object], bound_s: float) -> list[Turn]:
    """Return the turns of a case that are over the bound in each of three repeats."""

    def run() -> dict[str, Turn]:
        ground = Ground()
        case(ground, Peer(ground, "hostile"))
        return ground.longest

    return repeated(lambda: without_collector(run), bound_s)


def delete_followed(ground: Ground, peer: Peer) -> None:
    """Delete a stream with very many subscriptions and readers.

    All of them are told, which fills the socket: it resumes the others when it is read.
    """
    peer.ask("create", CreateTopic(topic=TOPIC, kind="stream"))
    wanted = [
        Subscribe(topic=TOPIC, subscription=f"s{channel}", consumer="c", channel=channel)
        for channel in range(1, CHANNELS + 1)
    ]
    peer.ask("subscribe", *wanted)
    readers = [
        OpenReader(topic=TOPIC, channel=CHANNELS + channel, start=EARLIEST)
        for channel in range(1, CHANNELS + 1)
    ]
    peer.ask("read", *readers)

    peer.ask("delete", DeleteTopic(topic=TOPIC))

    assert len(ground.broker.durables) == 0
    assert not peer.session.consumers
    assert not peer.session.readers


def delete_subscribed(ground: Ground, peer: Peer) -> None:
    """Delete a live topic with very many subscriptions, and make it anew in the same write.

    What subscribes to the new topic is not ended with the former one.
    """
    wanted = [
        Subscribe(topic=TOPIC, subscription=f"s{channel}", consumer="c", channel=channel)
        for channel in range(1, CHANNELS + 1)
    ]
    peer.ask("subscribe", *wanted)
    last = msgspec.structs.replace(wanted[-1], channel=CHANNELS + 1)

    peer.ask("delete", DeleteTopic(topic=TOPIC), CreateTopic(topic=TOPIC), last)

    assert list(peer.session.consumers) == [CHANNELS + 1]
    assert len(ground.broker.catalog.subscribers) == 1
    found = ground.broker.catalog.subscribers.find_live(TOPIC, last.subscription)
    assert found is not None
    assert len(found.consumers) == 1


def cover_partitions(ground: Ground, peer: Peer) -> None:
    """Create and delete topics with many partitions, which many wildcard subscriptions cover.

    The first topic gives each of them a cursor; the others are covered by the cursors there are.
    Consumers that join between are attached as well.
    """
    _subscribe_by_pattern(peer, 1, 30)
    names = [f"{TOPIC}.{number}" for number in range(3)]
    created: list[Command] = [
        CreateTopic(topic=name, kind="stream", partitions=PARTITIONS_MAX) for name in names
    ]

    peer.ask("create 1", created[0])
    _subscribe_by_pattern(peer, 31, 2)
    peer.ask("create more", *created[1:], CreateTopic(topic=TOPIC, kind="stream"))

    covered = [len(durable.partitions) for durable in ground.broker.durables]
    assert covered == [3 * PARTITIONS_MAX + 1] * 32
    peer.ask("delete", *[DeleteTopic(topic=name) for name in names])
    assert [len(durable.partitions) for durable in ground.broker.durables] == [1] * 32
    assert [len(durable.record.cursors) for durable in ground.broker.durables] == [1] * 32


def _subscribe_by_pattern(peer: Peer, first_channel: int, count: int) -> None:
    wanted = [
        Subscribe(topic="/default/>", subscription=f"s{channel}", consumer="c", channel=channel)
        for channel in range(first_channel, first_channel + count)
    ]
    peer.ask("subscribe", *wanted)
    peer.say("credit", *[credit_frame(one.channel, 100, 10**6) for one in wanted])


def delete_beside_subscriptions(ground: Ground, peer: Peer) -> None:
    """Delete a topic with many partitions, while another one has very many subscriptions."""
    peer.ask("create", CreateTopic(topic=TOPIC, kind="stream"))
    wanted = [
        Subscribe(topic=TOPIC, subscription=f"s{channel}", consumer="c", channel=channel)
        for channel in range(1, CHANNELS + 1)
    ]
    peer.ask("subscribe", *wanted)
    parts = f"{TOPIC}.parts"
    peer.ask("create", CreateTopic(topic=parts, kind="stream", partitions=PARTITIONS_MAX))

    peer.ask("delete", DeleteTopic(topic=parts))

    assert list(ground.broker.streams.by_name) == [TOPIC]


def commit_many_ids(ground: Ground, peer: Peer) -> None:
    """Commit as many batches as one transaction may have, with as many of the longest ids."""
    peer.ask("create", CreateTopic(topic=TOPIC, kind="stream", partitions=100))
    peer.ask("begin", BeginTransaction(channel=1, transaction="t"))
    each = TRANSACTION_IDS_MAX // TRANSACTION_BATCHES_MAX
    frames = []
    for slot in range(TRANSACTION_BATCHES_MAX):
        ids = [f"{slot}-{n}".ljust(MESSAGE_ID_BYTES_MAX, "i") for n in range(each)]
        batch = encode([b""] * each, ids=ids, producer=b"p")
        frames.append(b"".join(publish_frame(1, slot % 100, *batch, opcode=Opcode.STAGE)))
    peer.say("stage", *frames)

    topics: list[str] = [partition_name(TOPIC, n) for n in range(100)]
    peer.ask("commit", CommitTransaction(channel=1, topics=topics))

    stored = sum(topic.next_offset for topic in ground.broker.streams.by_name.values())
    assert stored == TRANSACTION_IDS_MAX


def commit_many_batches(ground: Ground, peer: Peer) -> None:
    """Commit as many batches to as many topics as one transaction may have."""
    parts = TRANSACTION_TOPICS_MAX // PARTITIONS_MAX
    names = [f"{TOPIC}.{part}" for part in range(parts)]
    for name in names:
        peer.ask("create", CreateTopic(topic=name, kind="stream", partitions=PARTITIONS_MAX))
    topics: list[str] = [partition_name(name, n) for name in names for n in range(PARTITIONS_MAX)]
    peer.ask("begin", BeginTransaction(channel=1, transaction="t"))
    batch = encode([b""], producer=b"p")
    frames = [
        b"".join(publish_frame(1, slot % len(topics), *batch, opcode=Opcode.STAGE))
        for slot in range(TRANSACTION_BATCHES_MAX)
    ]
    peer.say("stage", *frames)

    peer.ask("commit", CommitTransaction(channel=1, topics=topics))

    stored = sum(topic.next_offset for topic in ground.broker.streams.by_name.values())
    assert stored == TRANSACTION_BATCHES_MAX
