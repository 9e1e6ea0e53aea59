"""Cases of one request that concerns as much as one connection may have.

Each was found by an audit, and took 0.1 to 0.4 s in one turn of the event loop.
"""

from collections.abc import Callable

import msgspec
from tests.fuzz.stalling import Ground, Peer, Turn, repeated, without_collector

from ister.base import EARLIEST, partition_name
from ister.base.limits import PARTITIONS_MAX, TRANSACTION_BATCHES_MAX, TRANSACTION_TOPICS_MAX
from ister.codec import encode
from ister.wire import (
    BeginTransaction,
    CommitTransaction,
    CreateTopic,
    DeleteTopic,
    Opcode,
    OpenReader,
    Subscribe,
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
