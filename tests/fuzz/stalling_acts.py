"""What a case of `stalling` does beyond publishing, subscribing and acknowledging.

Stages, transactions, requests, saved cursors, heads of streams, and the largest control frames.
"""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from ister.base import EARLIEST, Origin, Position, partition_name
from ister.base.limits import (
    ACKS_PER_FRAME_MAX,
    BATCH_REPLIES_MAX,
    PARTITIONS_MAX,
    REQUEST_ITEMS_MAX,
    STAGE_TOPICS_MAX,
    TRANSACTION_ACKS_MAX,
    TRANSACTION_BATCHES_MAX,
    TRANSACTION_IDS_MAX,
    WATCHED_STREAMS_MAX,
)
from ister.codec import encode
from ister.wire import (
    AbortTransaction,
    BeginTransaction,
    CloseConsumer,
    CloseStage,
    Command,
    CommitTransaction,
    CreateTopic,
    DeleteTopic,
    DropCursor,
    DropStages,
    LocateStream,
    Opcode,
    OpenProducer,
    OpenReader,
    OpenStage,
    PublishStages,
    SaveCursor,
    Seek,
    Subscribe,
    WatchStreams,
    credit_frame,
    publish_frame,
    reply_frame,
)

if TYPE_CHECKING:
    from tests.fuzz.stalling import Case, Peer

    Act = Callable[[Case, Peer], object]

PARTS = "/default/parts"


def stage(case: "Case", peer: "Peer") -> None:
    """Stage batches for a few topics or very many, and publish or drop them."""
    rng, channel = case.rng, case.next_channel()
    word = f"stage-{channel}"
    peer.ask("open stage", OpenStage(channel=channel, stage=word))
    topics = _streams(case, peer, rng.choice([1, 100, PARTITIONS_MAX]))
    _add_batches(case, peer, channel, topics, rng.choice([1, 100, 2_000]))
    if rng.random() < 0.1:
        return
    peer.ask("close stage", CloseStage(channel=channel, topics=topics))
    case.stages.append(word)
    stages = case.stages[-rng.choice([1, 3]) :]
    if rng.random() < 0.7:
        case.sequence += 1
        number = case.sequence
        peer.ask("publish stages", PublishStages(stages=stages, series="series", number=number))
    else:
        peer.ask("drop stages", DropStages(stages=stages))


def commit(case: "Case", peer: "Peer") -> None:
    """Stage batches in a transaction with acknowledgements; commit or abort it."""
    rng, channel = case.rng, case.next_channel()
    peer.ask("begin", BeginTransaction(channel=channel, transaction=f"t{channel}"))
    topics = _streams(case, peer, rng.choice([1, 100, PARTITIONS_MAX]))
    _add_batches(case, peer, channel, topics, rng.choice([1, 100, TRANSACTION_BATCHES_MAX]))
    acks: list[tuple[int, int, int, int]] = []
    for consumer, lease, start, end in peer.leases[-1:]:
        acks = [(consumer, lease, o, o + 1) for o in range(start, end, rng.choice([1, 2]))]
    acks = acks[: rng.choice([0, TRANSACTION_ACKS_MAX])]
    if rng.random() < 0.8:
        what = f"commit {len(topics)} topics {len(acks)} acks"
        peer.ask(what, CommitTransaction(channel=channel, topics=topics, acks=acks))
    else:
        peer.ask("abort", AbortTransaction(channel=channel))


def request(case: "Case", peer: "Peer") -> None:
    """Publish requests, and answer as many of everybody's."""
    rng, channel = case.rng, case.next_channel()
    count = rng.choice([1, 1_000, BATCH_REPLIES_MAX])
    sessions = [p.session.id for p in case.peers]
    sessions += list(range(10**6, 10**6 + rng.choice([0, 1_000])))
    replies = [(sessions[n % len(sessions)], n) for n in range(count)]
    topic = rng.choice(case.topics)
    peer.ask("open producer", OpenProducer(topic=topic, name="asks", channel=channel))
    parts = encode([b"q"] * count, replies=replies, producer=b"asks", first_sequence=1)
    peer.say(f"request {count} of {topic}", *publish_frame(channel, 1, *parts))
    frame = b"".join(reply_frame(encode([b"r" * rng.choice([1, 100])] * count, replies=replies)))
    peer.say(f"reply {count} to {len(sessions)} sessions", frame)
    if count == 1:
        peer.say("reply of one, many times", frame * 2_000)


def watch(case: "Case", peer: "Peer") -> None:
    """Wait for the heads of streams, or ask where they lie."""
    rng = case.rng
    topics = _streams(case, peer, rng.choice([1, 100, PARTITIONS_MAX]))
    if rng.random() < 0.3:
        topics = [PARTS] * rng.choice([1, 4, 5]) + topics
    beyond = dict.fromkeys(topics, rng.choice([0, 2**62])) if rng.random() < 0.7 else {}
    watched = WatchStreams(topics=topics, beyond=beyond, wait_ms=rng.choice([0, 1, 60_000]))
    for _ in range(rng.choice([1, 20])):
        peer.ask(f"watch {len(topics)} for {watched.wait_ms} ms", watched)
    located = LocateStream(topic=rng.choice(topics), start=0, end=rng.choice([1, 2**62]))
    peer.ask("locate", *[located] * rng.choice([1, 100]))


def keep_cursors(case: "Case", peer: "Peer") -> None:
    """Save where a subscription stands, go there, and forget the place."""
    durables = list(case.ground.broker.durables)
    if not durables:
        return
    rng = case.rng
    durable = rng.choice(durables)
    topic, name = durable.pattern, durable.name
    places = [f"place-{n}" for n in range(rng.choice([1, 10, 200]))]
    saving = [SaveCursor(topic=topic, subscription=name, name=place) for place in places]
    peer.ask(f"save {len(places)} cursors of {topic} {name}", *saving)
    to = Position(origin=Origin.SNAPSHOT, name=rng.choice(places))
    seeking = Seek(topic=topic, subscription=name, to=to)
    peer.ask("seek to a saved cursor", *[seeking] * rng.choice([1, 20]))
    dropping = [DropCursor(topic=topic, subscription=name, name=place) for place in places]
    peer.ask("drop cursors", *rng.choice([[], dropping]))


def delete_followed(case: "Case", peer: "Peer") -> None:
    """Delete a topic that both peers follow, with messages under way."""
    rng, kind = case.rng, case.rng.choice(["live", "stream"])
    topic = f"/default/followed.{case.next_channel()}"
    partitions = rng.choice([0, 0, 10])
    peer.ask("create", CreateTopic(topic=topic, kind=kind, partitions=partitions))
    for each in case.peers:
        wanted: list[Command] = []
        frames = []
        for _ in range(rng.choice([1, 300])):
            channel = case.next_channel()
            name = rng.choice([f"s{channel}", "shared"])
            wanted.append(
                Subscribe(
                    topic=topic,
                    subscription=name,
                    consumer=f"c{channel}",
                    channel=channel,
                    type=rng.choice(["shared", "shared", "failover"]),
                    start=EARLIEST,
                )
            )
            frames.append(credit_frame(channel, rng.choice([0, 10]), 10**6))
            if kind == "stream":
                channel = case.next_channel()
                wanted.append(OpenReader(topic=topic, channel=channel, start=EARLIEST))
        each.ask("follow", *wanted)
        each.say("credit of followers", *frames)
    if not partitions:
        case.publish(peer, topic, count=rng.choice([1, 1_000]))
    again = [CreateTopic(topic=topic, kind=kind, partitions=partitions)] * rng.choice([0, 1])
    peer.ask(f"delete followed {kind} of {partitions}", DeleteTopic(topic=topic), *again)


def ask_at_length(case: "Case", peer: "Peer") -> None:
    """Send a control frame about as large as it may be."""
    rng, channel = case.rng, case.next_channel()
    long = [f"/default/{n:x}".ljust(255, "x") for n in range(REQUEST_ITEMS_MAX)]
    words = [f"{n:x}".rjust(36, "s") for n in range(REQUEST_ITEMS_MAX)]
    numbers = list(range(2**40, 2**40 + REQUEST_ITEMS_MAX))
    held = Subscribe(
        topic="/default/stream.0",
        subscription="held",
        consumer=f"c{channel}",
        channel=channel,
        type="shared",
        held=numbers,
    )
    opened = [OpenStage(channel=channel, stage=words[0] + str(channel))]
    begun = [BeginTransaction(channel=channel, transaction=words[0] + str(channel))]
    acks = [(channel, 2**40, o, o + 1) for o in range(ACKS_PER_FRAME_MAX)]
    some = long[:WATCHED_STREAMS_MAX]
    choices: list[Sequence[Command]] = [
        [WatchStreams(topics=some, beyond=dict.fromkeys(some[:3_500], 2**62))],
        [WatchStreams(topics=[PARTS], beyond=dict.fromkeys(long[:7_500], 2**62), wait_ms=60_000)],
        [*opened, CloseStage(channel=channel, topics=long[:STAGE_TOPICS_MAX])],
        [*begun, CommitTransaction(channel=channel, topics=long[:2_048], acks=acks)],
        [PublishStages(stages=words, series="s", number=1)],
        [DropStages(stages=words)],
        [held],
        [CloseConsumer(channel=channel, kept=words)],
    ]
    commands = rng.choice(choices)
    peer.ask(f"large {type(commands[-1]).__name__}", *commands)


def _streams(case: "Case", peer: "Peer", count: int) -> list[str]:
    """Return the names of so many streams: partitions, or the only one."""
    if count == 1:
        return [f"/default/stream.{case.rng.randrange(3)}"]
    if PARTS not in case.topics:
        peer.ask("create", CreateTopic(topic=PARTS, kind="stream", partitions=PARTITIONS_MAX))
        case.topics.append(PARTS)
    return [partition_name(PARTS, number) for number in range(count)]


def _add_batches(
    case: "Case", peer: "Peer", channel: int, topics: Sequence[str], count: int
) -> None:
    rng = case.rng
    each = rng.choice([1, 10]) if count > 100 else rng.choice([1, 100, 16_384 // count])
    ids_left = TRANSACTION_IDS_MAX if rng.random() < 0.5 else 0
    frames = []
    for slot in range(count):
        ids = None
        if ids_left >= each:
            ids_left -= each
            ids = [f"{channel}-{slot}-{n}".ljust(rng.choice([10, 255]), "i") for n in range(each)]
        parts = encode([b"x"] * each, ids=ids, producer=b"stages")
        frames += publish_frame(channel, slot % len(topics), *parts, opcode=Opcode.STAGE)
    peer.say(f"stage {count} of {each} for {len(topics)} topics ids={ids_left}", *frames)


ACTS: "Sequence[Act]" = (
    stage,
    commit,
    commit,
    request,
    watch,
    keep_cursors,
    delete_followed,
    ask_at_length,
)
