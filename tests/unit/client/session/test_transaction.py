"""A transaction before it leaves: what it collects, how it is cut into batches, what it tells."""

from typing import Any

import pytest

from ister.base.errors import (
    BadRequestError,
    LimitReachedError,
    MessageTooLargeError,
)
from ister.base.limits import (
    MIB,
    TRANSACTION_ACKS_MAX,
    TRANSACTION_BATCHES_MAX,
    TRANSACTION_BYTES_MAX,
    TRANSACTION_IDS_MAX,
    TRANSACTION_TOPICS_MAX,
)
from ister.client.session import Draft, MessageId, Staged
from ister.client.session.transaction import merge_runs
from ister.codec import Attributes, Batch
from ister.topics import Router
from ister.wire import Connection, Opcode

CHANNEL = 9
A, B = "/default/a", "/default/b"


def send(
    draft: Draft,
    topic: str,
    payload: bytes,
    *,
    key: str | None = None,
    attributes: Attributes | None = None,
    id: str | None = None,
) -> None:
    """Add a message."""
    draft.send(topic, payload, key=key, attributes=attributes, id=id, message_bytes_max=MIB)


def stage(draft: Draft, *, batch_bytes: int = MIB, **partitions: int) -> Staged:
    """Stage a transaction; `partitions` by the last part of the topic's name."""
    routers = {f"/default/{name}": Router(count) for name, count in partitions.items()}
    return draft.stage(routers, batch_bytes)


def batches(staged: Staged) -> list[tuple[str, Batch]]:
    """Return what its frames say: the topic of each batch, and the batch."""
    far = Connection(now_ms=0, heartbeat_ms=1_000)
    far.opened(64 * MIB)
    frames = far.receive(b"".join(staged.frames(CHANNEL)))
    assert {frame[:2] for frame in frames} <= {(Opcode.STAGE, CHANNEL)}
    return [(staged.topics[sequence], Batch(body)) for _, _, sequence, body in frames]


def test_messages_of_a_topic_travel_together_and_in_order() -> None:
    draft = Draft()
    for topic, payload in ((A, b"1"), (B, b"2"), (A, b"3")):
        send(draft, topic, payload)
    staged = stage(draft)

    assert [(t, batch.payloads) for t, batch in batches(staged)] == [(A, [b"1", b"3"]), (B, [b"2"])]


def test_results_are_in_the_order_of_the_sends() -> None:
    draft = Draft()
    for topic, payload in ((A, b"1"), (B, b"2"), (A, b"3")):
        send(draft, topic, payload)

    ids = stage(draft).on_committed([10, 20])
    assert ids == [MessageId(A, 10), MessageId(B, 20), MessageId(A, 11)]


def test_a_message_travels_with_everything_it_was_sent_with() -> None:
    draft = Draft()
    send(draft, A, b"1", key="k", attributes={"a": "1"}, id="i")
    send(draft, A, b"2")
    [(_, batch)] = batches(stage(draft))

    assert (batch.keys, batch.attributes, batch.ids) == (["k", None], [{"a": "1"}, {}], ["i", None])
    assert batch.producer == ""


def test_attributes_are_copied_when_sent() -> None:
    draft, attributes = Draft(), {"n": "1"}
    send(draft, A, b"", attributes=attributes)
    attributes["n"] = "2"

    [(_, batch)] = batches(stage(draft))
    assert batch.attributes == [{"n": "1"}]


def test_messages_of_a_partitioned_topic_are_routed_as_a_producer_does() -> None:
    draft = Draft()
    for key in (None, "x", None, "x"):
        send(draft, A, b"", key=key)
    send(draft, B, b"")
    staged = stage(draft, a=4)
    partition = Router(4).route("x")

    ids = staged.on_committed([100 * slot for slot in range(len(batches(staged)))])
    assert [mid.partition for mid in ids] == [0, partition, 1, partition, None]
    assert len(set(ids)) == 5


def test_many_messages_are_cut_into_batches() -> None:
    draft = Draft()
    for number in range(10):
        send(draft, A, bytes(30) + b"%d" % number)
    staged = stage(draft, batch_bytes=100)
    cut = [batch.count for _, batch in batches(staged)]

    assert cut == [3, 3, 3, 1]
    ids = staged.on_committed([0, 50, 60, 70])
    assert [mid.offset for mid in ids] == [0, 1, 2, 50, 51, 52, 60, 61, 62, 70]


def test_frames_can_be_made_again() -> None:
    draft = Draft()
    send(draft, A, b"1")
    staged = stage(draft)

    assert staged.frames(CHANNEL) == staged.frames(CHANNEL)


def test_a_transaction_takes_its_bytes_and_no_more() -> None:
    draft, payload = Draft(), bytes(MIB)
    for _ in range(TRANSACTION_BYTES_MAX // MIB - 1):
        send(draft, A, payload)
    with pytest.raises(LimitReachedError) as caught:
        send(draft, A, payload)
    before = draft.size_bytes

    assert caught.value.limit == "transaction_bytes_max"
    assert before <= TRANSACTION_BYTES_MAX
    send(draft, A, b"a little more")
    assert draft.size_bytes > before


def test_a_transaction_takes_its_batches_and_no_more() -> None:
    draft = Draft()
    for _ in range(TRANSACTION_BATCHES_MAX):
        send(draft, A, b"xx")
    assert len(batches(stage(draft, batch_bytes=2))) == TRANSACTION_BATCHES_MAX

    draft = Draft()
    for _ in range(TRANSACTION_BATCHES_MAX + 1):
        send(draft, A, b"xx")
    with pytest.raises(LimitReachedError) as caught:
        stage(draft, batch_bytes=2)
    assert caught.value.limit == "transaction_batches_max"


def test_a_transaction_takes_its_topics_and_no_more() -> None:
    draft = Draft()
    for number in range(TRANSACTION_TOPICS_MAX):
        send(draft, f"/default/{number}", b"")
    with pytest.raises(LimitReachedError, match="transaction_topics_max"):
        send(draft, "/default/another", b"")
    send(draft, "/default/0", b"")

    assert len(stage(draft).topics) == TRANSACTION_TOPICS_MAX


def test_the_partitions_of_a_topic_count_as_topics() -> None:
    draft = Draft()
    for number in range(2 * TRANSACTION_TOPICS_MAX):
        send(draft, A, b"", key=f"{number}")
    for number in range(TRANSACTION_TOPICS_MAX):
        send(draft, f"/default/{number}" if number else A, b"")

    with pytest.raises(LimitReachedError, match="transaction_topics_max"):
        stage(draft, a=2)


class Acked:
    """A message that is leased."""

    void = False

    def __init__(self, offset: int) -> None:
        self.offset = offset

    def leased(self) -> Any:
        return self

    def run(self) -> tuple[int, int, int, int]:
        return CHANNEL, 1, self.offset, self.offset + 1

    def on_acked(self) -> None:
        pass


@pytest.mark.parametrize(("step", "count"), [(1, 1), (2, 0)])
def test_a_transaction_takes_its_runs_of_acknowledgements_and_no_more(
    step: int, count: int
) -> None:
    draft = Draft()
    for number in range(TRANSACTION_ACKS_MAX + 1):
        draft.ack(Acked(number * step))

    if count:
        assert len(stage(draft).acks()) == count
    else:
        with pytest.raises(LimitReachedError, match="transaction_acks_max"):
            stage(draft)


@pytest.mark.parametrize("payload", ["text", None, 7], ids=str)
def test_what_is_no_payload_is_refused(payload: object) -> None:
    with pytest.raises(BadRequestError):
        send(Draft(), A, payload)  # type: ignore[arg-type]


def test_a_message_is_checked_when_it_is_sent() -> None:
    draft = Draft()
    with pytest.raises(MessageTooLargeError):
        send(draft, A, bytes(MIB + 1))
    with pytest.raises(BadRequestError):
        send(draft, A, b"", key=7)  # type: ignore[arg-type]
    with pytest.raises(BadRequestError):
        send(draft, None, b"")  # type: ignore[arg-type]

    assert stage(draft).empty


def test_nothing_is_added_once_it_has_ended() -> None:
    draft = Draft()
    draft.end()

    with pytest.raises(BadRequestError):
        send(draft, A, b"late")
    with pytest.raises(BadRequestError):
        draft.check_open()


def test_a_broker_that_tells_of_other_batches_is_not_believed() -> None:
    draft = Draft()
    send(draft, A, b"")

    with pytest.raises(BadRequestError):
        stage(draft).on_committed([])


def test_acknowledgements_of_neighbours_are_one_run() -> None:
    runs = [(1, 5, 12, 13), (1, 5, 10, 11), (1, 5, 11, 12), (1, 5, 11, 12), (1, 5, 14, 15)]
    others = [(1, 6, 15, 16), (2, 5, 13, 14)]

    assert merge_runs([*runs, *others]) == [(1, 5, 10, 13), (1, 5, 14, 15), *others]


def test_a_message_that_was_known_by_its_id_is_told_from_the_others() -> None:
    draft = Draft()
    send(draft, A, b"new")
    send(draft, A, b"known", id="one")
    send(draft, B, b"other")

    ids = stage(draft).on_committed([10, 20], {0: [10, ~3]})
    assert list(ids) == [MessageId(A, 10), MessageId(A, 3), MessageId(B, 20)]
    assert [one.duplicate for one in ids] == [False, True, False]


@pytest.mark.parametrize("each", [{0: [1]}, {0: [1, 2, 3]}, {7: [1, 2]}, {-1: [1, 2]}])
def test_offsets_of_other_messages_than_there_were_are_refused(each: dict[int, list[int]]) -> None:
    draft = Draft()
    send(draft, A, b"a")
    send(draft, A, b"b")

    with pytest.raises(BadRequestError):
        stage(draft).on_committed([10], each)


def test_a_batch_is_of_one_schema_and_the_order_stays() -> None:
    draft = Draft()
    for payload, schema in ((b"a", (1, 1)), (b"b", (1, 1)), (b"c", (1, 2)), (b"d", (0, 0))):
        draft.send(
            A, payload, key=None, attributes=None, id=None, message_bytes_max=MIB, schema=schema
        )

    found = [(batch.schema, batch.payloads) for _, batch in batches(stage(draft))]
    assert found == [((1, 1), [b"a", b"b"]), ((1, 2), [b"c"]), (None, [b"d"])]


@pytest.mark.parametrize("wrong", [1, "x", (1,), (1, 2, 3), (-1, 1), (1, 2**32), ("a", 1), None])
def test_what_names_no_schema_is_refused(wrong: Any) -> None:
    with pytest.raises(BadRequestError):
        Draft().send(
            A, b"", key=None, attributes=None, id=None, message_bytes_max=MIB, schema=wrong
        )


def test_a_transaction_with_as_many_ids_as_it_may_have_takes_messages_without_one() -> None:
    draft = Draft()
    for number in range(TRANSACTION_IDS_MAX):
        send(draft, A, b"x", id=str(number))

    with pytest.raises(LimitReachedError, match="transaction_ids_max"):
        send(draft, A, b"x", id="one too many")
    send(draft, B, b"x")

    assert sum(batch.count for _, batch in batches(stage(draft))) == TRANSACTION_IDS_MAX + 1
