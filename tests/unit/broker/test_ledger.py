"""The state: a fold over the journal that any restart repeats."""

from typing import Any

import msgspec
import pytest
from msgspec import Raw

from ister.base import AckSettings, StreamSettings
from ister.base.errors import CorruptedError
from ister.broker.state.changes import (
    Acked,
    Change,
    Confirmed,
    CursorDropped,
    CursorMoved,
    CursorSaved,
    Failed,
    NamespaceCreated,
    NamespaceDeleted,
    PartitionedCreated,
    PartitionedDeleted,
    Sequenced,
    SeriesPublished,
    SubscriptionCreated,
    SubscriptionDeleted,
    SubscriptionPaused,
    TopicCreated,
    TopicDeleted,
    TopicsCovered,
    TopicTrimmed,
    TransactionDone,
    decode_changes,
    encode_changes,
)
from ister.broker.state.message_ids import key_of
from ister.broker.state.producers import RUNS_REMEMBERED, ProducerRecord, Producers
from ister.broker.state.shared_budget import SharedBudget
from ister.broker.state.state import State
from ister.codec import Batch, encode
from ister.log import Entry, Kind
from ister.subscriptions import Cursor

SUBSCRIPTION = SubscriptionCreated(
    3,
    "/default/a",
    "s",
    "shared",
    "random",
    {"a": "b*"},
    ["k"],
    AckSettings(max_deliveries=7, backoff_ms=(1, 2)),
)

# One of each, in an order that makes sense.
CHANGES: list[Change] = [
    NamespaceCreated("team"),
    PartitionedCreated("/default/p", 2),
    PartitionedCreated("/default/q", 4),
    PartitionedDeleted("/default/q"),
    TopicCreated(1, "/default/a", StreamSettings(max_age_ms=5)),
    TopicCreated(2, "/default/b", StreamSettings()),
    TopicTrimmed(1, 2),
    SUBSCRIPTION,
    SubscriptionCreated(4, "/default/b", "t", "exclusive", "random", {}, [], AckSettings()),
    CursorMoved(3, 1, 4),
    CursorMoved(3, 2, 0),
    TopicsCovered([3, 9], [1, 2, 9]),
    TopicsCovered([4], [2]),
    Acked(3, 1, [(4, 6), (8, 9)]),
    Confirmed(3, [(70, 4, 6), (71, 8, 9)]),
    Failed(3, 1, [(6, 8, 2)]),
    CursorSaved(3, "then", Raw(msgspec.msgpack.encode({1: Cursor(5).encode()}))),
    CursorSaved(3, "later", Raw(msgspec.msgpack.encode({1: Cursor(6).encode()}))),
    CursorDropped(3, "later"),
    SubscriptionPaused(3, True),
    TransactionDone("word", [7, 8], 1_000),
    Sequenced(1, "p", 0, 3),
    SeriesPublished("query", 3, 1_000),
    SeriesPublished("other", 1, 1_500),
    SeriesPublished("query", 4, 2_000),
    TopicDeleted(2),
    SubscriptionDeleted(4),
]


def state_of(changes: list[Change]) -> State:
    state = State()
    state.on_changes(changes)
    state.drop_dead_cursors()
    return state


def batch(
    *payloads: bytes, base_offset: int = 0, time_ms: int = 0, sequence: int = 0, ids: object = None
) -> Batch:
    head, body = encode(payloads, producer=b"p", first_sequence=sequence, ids=ids)  # type: ignore[arg-type]
    made = Batch(head + body)
    made.stamp(base_offset, time_ms)
    return made


def test_changes_come_back_from_bytes_as_they_were() -> None:
    assert decode_changes(encode_changes(CHANGES)) == CHANGES


def test_bytes_that_are_no_changes_are_refused() -> None:
    for body in (b"", b"\x01", encode_changes(CHANGES)[:-1], b"\x91\x92\xa5Weird\x01"):
        with pytest.raises(ValueError, match=r"."):
            decode_changes(body)


def test_the_state_says_what_the_changes_said() -> None:
    state = state_of(CHANGES)
    record = state.subscriptions[3]

    assert state.namespaces == {"team"}
    assert state.partitioned == {"/default/p": 2}
    assert {n: (t.name, t.first_offset) for n, t in state.topics.items()} == {1: ("/default/a", 2)}
    assert list(state.subscriptions) == [3]
    assert (record.created, record.paused, list(record.saved)) == (SUBSCRIPTION, True, ["then"])
    assert list(record.cursors) == [1]
    assert list(state.confirmations) == [(3, 70, 4, 6), (3, 71, 8, 9)]
    assert (record.cursors[1].floor, record.cursors[1].acked.runs()) == (6, [(8, 9)])
    assert record.cursors[1].failures_of(7) == 2
    assert state.commits.find("word") == (1_000, [7, 8], {})
    assert list(state.series.items()) == [("other", (1, 1_500)), ("query", (4, 2_000))]
    assert (state.topic_number, state.subscription_number) == (2, 4)


def test_long_message_ids_in_snapshots_of_the_first_versions_are_known() -> None:
    state = state_of(CHANGES)
    # As it is, not as its key.
    state.topics[1].ids.add("i" * 255, 7, 1_000)
    restored = State()
    restored.restore(state.encode())

    assert restored.topics[1].ids.find(key_of("i" * 255), newer_than_ms=-1) == 7


@pytest.mark.parametrize("start", range(len(CHANGES)))
def test_replaying_the_end_of_the_journal_on_a_newer_snapshot_changes_nothing(start: int) -> None:
    whole = state_of(CHANGES)
    restored = State()
    restored.restore(whole.encode())
    restored.on_changes(CHANGES[start:])
    restored.drop_dead_cursors()

    assert restored.encode() == whole.encode()


def test_a_snapshot_brings_everything_back() -> None:
    state = state_of(CHANGES)
    for start in (0, 2, 4):
        stored = batch(b"x", b"y", base_offset=start, sequence=start, ids=[str(start), None])
        state.on_batch(1, stored)
    restored = State()
    restored.restore(state.encode())

    assert restored.encode() == state.encode()
    record = restored.topics[1]
    assert record.next_offset == 6
    assert record.producers.next_sequence("p") == 6
    assert record.ids.find("2", newer_than_ms=-1) == 2


def test_a_batch_stored_twice_counts_once() -> None:
    state = state_of([TopicCreated(1, "/default/a", StreamSettings())])
    for _ in range(2):
        state.on_batch(1, batch(b"0", b"1"))
        state.on_batch(1, batch(b"2", base_offset=2, sequence=2))
    record = state.topics[1]

    assert record.next_offset == 3
    assert runs_of(record.producers, "p") == [(0, 0, 3)]


def test_what_is_said_of_topics_and_subscriptions_that_are_gone_is_of_no_interest() -> None:
    state = State()
    state.on_batch(9, batch(b"x"))
    state.on_changes(
        [
            TopicTrimmed(9, 5),
            Acked(9, 9, [(0, 1)]),
            CursorMoved(9, 9, 1),
            SUBSCRIPTION,
            CursorMoved(3, 9, 1),
            Acked(3, 9, [(0, 1)]),
            Failed(3, 9, [(0, 1, 1)]),
        ]
    )

    assert state.topics == {}
    assert state.subscriptions[3].cursors == {}


def test_a_topic_never_begins_earlier_again() -> None:
    state = state_of(
        [TopicCreated(1, "/default/a", StreamSettings()), TopicTrimmed(1, 7), TopicTrimmed(1, 3)]
    )

    assert state.topics[1].first_offset == 7


def test_applying_what_is_read_leaves_nothing_to_be_written() -> None:
    state = state_of(CHANGES)
    cursor = state.subscriptions[3].cursors[1]

    assert cursor.take_changes() == []
    assert cursor.take_failures() == []


def test_ack_settings_that_change_keep_the_cursors() -> None:
    state = state_of(CHANGES)
    other = SubscriptionCreated(3, "/default/a", "s", "shared", "random", {}, [], AckSettings())
    state.on_changes([other])

    assert state.subscriptions[3].created is other
    assert state.subscriptions[3].cursors[1].floor == 6


def test_the_highest_number_of_a_series_stays_when_a_lower_one_is_replayed() -> None:
    state = state_of([SeriesPublished("s", 7, 2_000), SeriesPublished("s", 6, 1_000)])

    assert state.series["s"] == (7, 2_000)


def test_the_series_silent_for_longest_makes_room(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ister.broker.state.state.SERIES_REMEMBERED_MAX", 2)
    state = state_of([SeriesPublished(name, 1, 0) for name in ("a", "b", "a", "c")])

    assert list(state.series) == ["a", "c"]


def test_a_part_of_a_series_is_stored_without_its_sequence_numbers() -> None:
    state = state_of([TopicCreated(1, "/default/a", StreamSettings())])
    body = memoryview(batch(b"0", b"1", base_offset=4).to_bytes())
    state.apply(Entry(Kind.PART, 1, 1, 1, 64, body, 2))

    assert state.topics[1].next_offset == 6
    assert state.topics[1].producers.next_sequence("p") == 0


@pytest.mark.parametrize("kind", [Kind.BATCH, Kind.CHANGES, Kind.TRANSACTION, Kind.PART])
def test_an_entry_that_makes_no_sense_is_corruption(kind: int) -> None:
    entry = Entry(
        kind=kind,
        topic=1,
        number=1,
        count=1,
        body=memoryview(b"no sense at all"),
        segment=7,
        position=64,
    )

    with pytest.raises(CorruptedError, match="segment 7"):
        State().apply(entry)


# Producers


def runs_of(producers: Producers, name: str) -> list[tuple[int, int, int]]:
    found = producers.find(name)
    assert found is not None
    return found.runs


def test_the_producer_silent_for_longest_makes_room(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ister.broker.state.producers.PRODUCERS_REMEMBERED_MAX", 2)
    producers = Producers(SharedBudget(10**6))
    for name in ("a", "b", "a", "c"):
        producers.on_stored(name, producers.next_sequence(name), 0, 1)

    assert [name for rows in producers.rows() for name, _ in rows] == ["a", "c"]
    assert producers.next_sequence("b") == 0


def test_a_state_that_changes_while_it_is_encoded_is_the_same_after_a_replay(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("ister.broker.state.state.ROWS_AT_ONCE", 1)
    monkeypatch.setattr("ister.broker.state.state.WORK_AT_ONCE", 1)
    monkeypatch.setattr("ister.broker.state.producers.RUNS_AT_ONCE", 1)
    monkeypatch.setattr("ister.broker.state.message_ids.CHUNK_COUNT", 1)
    state = State()
    state.on_changes(begun())
    for step in range(10):
        encoding, later = state.encoding(), changes_of(step)
        for _ in range(step):
            next(encoding)
        state.on_changes(later)
        while True:
            try:
                next(encoding)
            except StopIteration as end:
                snapshot = end.value
                break
        again = State()
        again.restore(snapshot)
        again.on_changes(later)

        assert decoded(again) == decoded(state), f"at step {step}"


def begun() -> list[Change]:
    """Return what makes a state with some of everything."""
    changes: list[Change] = [NamespaceCreated("shop"), PartitionedCreated("/default/x", 4)]
    for number in range(1, 5):
        changes.append(TopicCreated(number, f"/default/x-part-{number - 1}", StreamSettings()))
        changes.append(
            SubscriptionCreated(number, "/default/x", f"s{number}", "", "", {}, [], AckSettings())
        )
        changes.append(CursorMoved(number, number, 0))
    return changes


def changes_of(step: int) -> list[Change]:
    """Return some of each kind, on what is encoded sooner and later."""
    new = 10 + step
    return [
        TopicCreated(new, f"/default/new{new}", StreamSettings()),
        SubscriptionCreated(new, f"/default/new{new}", "s", "", "", {}, [], AckSettings()),
        CursorMoved(new, new, 0),
        CursorMoved(1, new, 0),
        Acked(4, 4, [(step, step + 1)]),
        Acked(1, 1, [(step, step + 1)]),
        Failed(4, 4, [(step + 2, step + 3, 1)]),
        Sequenced(1, "p", step, 1),
        TopicTrimmed(2, step),
        TransactionDone(f"word {step}", [step], 0),
        TopicDeleted(new - 1),
        SubscriptionDeleted(new - 1),
        NamespaceDeleted("shop"),
    ]


def decoded(state: State) -> dict[str, Any]:
    """Return all that a state knows, in an order of its own."""
    rows: dict[str, Any] = msgspec.msgpack.decode(state.encode())
    for name in ("topics", "subscriptions"):
        rows[name].sort(key=str)
    return rows


def test_a_producer_that_fills_very_many_holes_takes_no_more_memory() -> None:
    record = ProducerRecord()
    record.on_stored(0, 0, 1)
    record.on_stored(100_000, 1, 1)
    filled = range(10_000, 1, -2)
    for place, sequence in enumerate(filled):
        if record.is_hole(sequence, 1):
            record.on_stored(sequence, 2 + place, 1)
        assert len(record.runs) <= 2 * RUNS_REMEMBERED

    # None is taken for new again, remembered or not.
    assert not any(record.is_hole(sequence, 1) for sequence in filled)
    assert not record.is_hole(0, 1)
    # A hole where an honest client may still fill one.
    assert record.is_hole(99_000, 1)


def test_commits_in_a_snapshot_of_the_first_versions_are_known() -> None:
    state = state_of(CHANGES)
    rows = msgspec.msgpack.decode(state.encode())
    del rows["commits"]
    rows |= {"transactions": [["a", [3]], ["b", [5]]], "transactions_each": {"b": {0: [~2, 5]}}}
    restored = State()

    restored.restore(msgspec.msgpack.encode(rows), now_ms=7_000)

    assert restored.commits.find("a") == (7_000, [3], {})
    assert restored.commits.find("b") == (7_000, [5], {0: [~2, 5]})
