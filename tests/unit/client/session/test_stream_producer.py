"""The sending half on a stream: numbers, sending again, fences, expected offsets, known ids."""

import pytest
from tests.unit.client.session.wire_end import MESSAGE_BYTES_MAX, TIMEOUT_MS, TOPIC, WireEnd, send

from ister.base.errors import (
    ConnectionLostError,
    IsterError,
    MessageTooLargeError,
    OffsetMismatchError,
    ProducerFencedError,
    ProtocolError,
    RequestTimeoutError,
    StorageFailedError,
    StorageUncertainError,
    TopicNotFoundError,
)
from ister.base.limits import PRODUCER_BATCH_BYTES
from ister.client.session import MessageId, ProducerChannel, Sent
from ister.codec import Batch, Codec
from ister.wire import (
    CloseProducer,
    Command,
    Opcode,
    OpenProducer,
    ProducerOpened,
    PublishedEach,
    error_reply,
)

# First number, payloads.
Numbered = tuple[int, list[bytes]]


@pytest.fixture
def end() -> WireEnd:
    """A connected session."""
    made = WireEnd()
    made.connect()
    return made


def open_stream(end: WireEnd, *, next_sequence: int = 0, kind: str = "stream") -> ProducerChannel:
    """Open a producer of a stream, both ends of it."""
    replies: list[Command | IsterError] = []
    producer = end.session.open_producer(
        TOPIC, name="shop", codec=Codec.NONE, resend=False, on_reply=replies.append
    )
    answer_open(end, next_sequence, kind)
    assert len(replies) == 1
    return producer


def answer_open(end: WireEnd, next_sequence: int, kind: str = "stream") -> None:
    """Say yes to the producer that the client opens."""
    [(sequence, command)] = [(s, c) for s, c in end.commands() if isinstance(c, OpenProducer)]
    assert command.name == "shop"
    reply = ProducerOpened(
        topic=TOPIC, producer_id=1, partitions=0, kind=kind, next_sequence=next_sequence
    )
    end.tell(reply, sequence=sequence)


def come_back(end: WireEnd, *, next_sequence: int, kind: str = "stream") -> None:
    """Lose the connection and make a new one, on which the producer is opened again."""
    end.session.disconnected("reset")
    end.connect()
    answer_open(end, next_sequence, kind)


def published(end: WireEnd) -> list[tuple[int, Numbered]]:
    """Return what the client has published since the last call: frame sequence, batch."""
    return [
        (sequence, (Batch(body).first_sequence, Batch(body).payloads))
        for opcode, _, sequence, body in end.frames()
        if opcode in (Opcode.PUBLISH, Opcode.PUBLISH_BULK, Opcode.PUBLISH_EXPECT)
    ]


def numbered(end: WireEnd) -> list[Numbered]:
    """The same without the sequences of the frames."""
    return [batch for _, batch in published(end)]


def fly(end: WireEnd, producer: ProducerChannel, *payloads: bytes) -> list[Sent]:
    """Send a batch, and have it leave."""
    sent = [send(producer, payload) for payload in payloads]
    end.session.flush()
    return sent


def test_messages_are_numbered_from_what_the_broker_says(end: WireEnd) -> None:
    producer = open_stream(end, next_sequence=7)
    fly(end, producer, b"a", b"b")
    lone = producer.send_lone(b"no", Sent)
    fly(end, producer, b"c")

    assert lone is None
    assert numbered(end) == [(7, [b"a", b"b"]), (9, [b"c"])]


def test_a_lone_message_is_numbered_like_any_other(end: WireEnd) -> None:
    producer = open_stream(end, next_sequence=7)
    producer.send_lone(b"a", Sent)
    [(sequence, batch)] = published(end)
    end.acknowledge(producer, sequence, 100)
    fly(end, producer, b"b")

    assert [batch, *numbered(end)] == [(7, [b"a"]), (8, [b"b"])]


@pytest.mark.parametrize("lone", [True, False])
@pytest.mark.parametrize("next_sequence", [0, 1, 3], ids=["none", "first", "both"])
def test_what_was_in_flight_goes_again_under_its_numbers(
    end: WireEnd, *, lone: bool, next_sequence: int
) -> None:
    producer = open_stream(end)
    first = producer.send_lone(b"a", Sent) if lone else fly(end, producer, b"a")[0]
    [second, third] = fly(end, producer, b"b", b"c")
    before = numbered(end)
    come_back(end, next_sequence=next_sequence)
    again = published(end)

    assert before == [(0, [b"a"]), (1, [b"b", b"c"])]
    assert [batch for _, batch in again] == before
    for (sequence, _), offset in zip(again, (40, 50), strict=True):
        end.acknowledge(producer, sequence, offset)
    assert first is not None
    assert [s.result().offset for s in (first, second, third)] == [40, 50, 51]
    assert producer.pending_bytes == 0


def test_what_is_new_comes_behind_what_goes_again_and_is_numbered_then(end: WireEnd) -> None:
    producer = open_stream(end)
    fly(end, producer, b"a")
    end.frames()
    end.session.disconnected("reset")
    fly(end, producer, b"b")
    fly(end, producer, b"c")
    end.connect()
    answer_open(end, 1)

    assert numbered(end) == [(0, [b"a"]), (1, [b"b"]), (2, [b"c"])]


def test_batches_that_were_sent_are_not_joined_or_cut_when_they_go_again(end: WireEnd) -> None:
    producer = open_stream(end)
    fly(end, producer, b"a")
    fly(end, producer, b"b", b"c")
    before = numbered(end)
    end.session.disconnected("reset")
    end.connect(batch_bytes_max=64)
    answer_open(end, 0)

    assert numbered(end) == before


def test_a_batch_lost_twice_goes_a_third_time(end: WireEnd) -> None:
    producer = open_stream(end)
    [sent] = fly(end, producer, b"a")
    for _ in range(2):
        come_back(end, next_sequence=0)
    [(sequence, batch)] = published(end)
    end.acknowledge(producer, sequence, 5)

    assert batch == (0, [b"a"])
    assert sent.result() == MessageId(TOPIC, 5)


def test_what_runs_out_of_time_leaves_no_hole_in_the_numbers(end: WireEnd) -> None:
    producer = open_stream(end)
    [late] = fly(end, producer, b"late")
    end.frames()
    end.session.disconnected("reset")
    for _ in range(TIMEOUT_MS // 1_000 + 2):
        end.now_ms += 1_000
        end.session.pulse()
    fly(end, producer, b"next")
    end.connect()
    answer_open(end, 0)

    assert isinstance(late.exception(), RequestTimeoutError)
    assert numbered(end) == [(0, [b"next"])]


def test_payloads_are_kept_until_acknowledged_and_not_longer(end: WireEnd) -> None:
    producer = open_stream(end)
    sent = producer.send(b"a", "key", {"a": "1"}, "id", None, Sent)
    [(sequence, _)] = published(end)
    batch = sent.batch
    held = (batch.payloads, batch.keys, batch.attributes, batch.ids)
    end.acknowledge(producer, sequence, 5)

    assert held == ([b"a"], ["key"], [{"a": "1"}], ["id"])
    assert (batch.payloads, batch.keys, batch.attributes, batch.ids) == ([], None, None, None)


def test_a_refused_batch_fails_and_the_next_one_leaves_its_numbers_out(end: WireEnd) -> None:
    producer = open_stream(end)
    [sent] = fly(end, producer, b"a")
    [(sequence, _)] = published(end)
    refusal = OffsetMismatchError(TOPIC, 3, 4)
    end.tell(error_reply(refusal), channel=producer.channel, sequence=sequence)
    fly(end, producer, b"b")

    assert isinstance(sent.exception(), OffsetMismatchError)
    assert numbered(end) == [(1, [b"b"])]


def test_a_fenced_producer_ends_and_is_not_opened_again(end: WireEnd) -> None:
    producer = open_stream(end)
    [first] = fly(end, producer, b"a")
    [second] = fly(end, producer, b"b")
    [(sequence, _), _] = published(end)
    refusal = error_reply(ProducerFencedError(TOPIC, "shop"))
    end.tell(refusal, channel=producer.channel, sequence=sequence)
    closing = [c for _, c in end.commands()]
    end.session.disconnected("reset")
    end.connect()

    assert isinstance(first.exception(), ProducerFencedError)
    assert isinstance(second.exception(), ProducerFencedError)
    with pytest.raises(ProducerFencedError):
        send(producer, b"c")
    assert closing == [CloseProducer(channel=producer.channel)]
    assert end.commands() == []


@pytest.mark.parametrize("next_sequence", [1, 3], ids=["inside a batch", "beyond all"])
def test_numbers_that_somebody_else_has_used_are_a_fence(end: WireEnd, next_sequence: int) -> None:
    producer = open_stream(end)
    [sent, _] = fly(end, producer, b"a", b"b")
    end.frames()
    come_back(end, next_sequence=next_sequence)

    assert isinstance(sent.exception(), ProducerFencedError)
    assert isinstance(producer.closed, ProducerFencedError)
    assert end.session.producers == {}
    assert published(end) == []


def test_a_stream_that_was_made_anew_takes_everything_from_its_start(end: WireEnd) -> None:
    producer = open_stream(end, next_sequence=100)
    fly(end, producer, b"a")
    fly(end, producer, b"b")
    end.frames()
    come_back(end, next_sequence=0)

    assert numbered(end) == [(0, [b"a"]), (1, [b"b"])]


def test_on_a_live_topic_nothing_goes_again(end: WireEnd) -> None:
    producer = open_stream(end, kind="live")
    [sent] = fly(end, producer, b"a")
    end.frames()
    come_back(end, next_sequence=0, kind="live")

    assert isinstance(sent.exception(), ConnectionLostError)
    assert published(end) == []


def test_an_expected_offset_travels_alone_in_the_stamp(end: WireEnd) -> None:
    producer = open_stream(end)
    send(producer, b"before")
    producer.send_expecting(b"expecting", "k", None, None, 42, Sent)
    send(producer, b"behind")
    frames = [(opcode, Batch(body)) for opcode, _, _, body in end.frames()]

    assert [opcode for opcode, _ in frames] == [
        Opcode.PUBLISH,
        Opcode.PUBLISH_EXPECT,
        Opcode.PUBLISH_BULK,
    ]
    assert [batch.payloads for _, batch in frames] == [[b"before"], [b"expecting"], [b"behind"]]
    assert [batch.base_offset for _, batch in frames] == [0, 42, 0]
    assert [batch.first_sequence for _, batch in frames] == [0, 1, 2]
    assert frames[1][1].keys == ["k"]


def test_the_offset_zero_can_be_expected(end: WireEnd) -> None:
    producer = open_stream(end)
    producer.send_expecting(b"first", None, None, None, 0, Sent)
    [frame] = end.frames()

    assert frame[0] == Opcode.PUBLISH_EXPECT


def test_an_expected_offset_goes_again_with_its_batch(end: WireEnd) -> None:
    producer = open_stream(end)
    producer.send_expecting(b"expecting", None, None, None, 42, Sent)
    end.frames()
    come_back(end, next_sequence=1)
    [(opcode, _, _, body)] = end.frames()

    assert (opcode, Batch(body).base_offset, Batch(body).first_sequence) == (
        Opcode.PUBLISH_EXPECT,
        42,
        0,
    )


def test_a_refused_message_with_an_expected_offset_leaves_nothing_behind(end: WireEnd) -> None:
    producer = open_stream(end)
    with pytest.raises(MessageTooLargeError):
        producer.send_expecting(bytes(MESSAGE_BYTES_MAX + 1), None, None, None, 42, Sent)
    send(producer, b"next")

    assert [frame[0] for frame in end.frames()] == [Opcode.PUBLISH]


def test_messages_that_were_known_by_their_ids_get_the_offset_of_the_first(end: WireEnd) -> None:
    producer = open_stream(end)
    sent = [producer.send(b"x", None, None, id_, None, Sent) for id_ in "abc"]
    [(sequence, _)] = published(end)
    end.tell(PublishedEach(offsets=[~3, 10, ~0]), channel=producer.channel, sequence=sequence)
    ids = [one.result() for one in sent]

    assert ids == [MessageId(TOPIC, 3), MessageId(TOPIC, 10), MessageId(TOPIC, 0)]
    assert [mid.duplicate for mid in ids] == [True, False, True]
    assert producer.pending_bytes == 0


def test_offsets_of_another_number_of_messages_break_the_protocol(end: WireEnd) -> None:
    producer = open_stream(end)
    fly(end, producer, b"a", b"b")
    [(sequence, _)] = published(end)

    with pytest.raises(ProtocolError):
        end.tell(PublishedEach(offsets=[1]), channel=producer.channel, sequence=sequence)


def test_offsets_for_what_is_not_in_flight_are_ignored(end: WireEnd) -> None:
    producer = open_stream(end)

    end.tell(PublishedEach(offsets=[1]), channel=producer.channel, sequence=99)
    end.tell(PublishedEach(offsets=[1]), channel=77, sequence=1)
    assert producer.pending_bytes == 0


def test_an_offset_that_the_broker_forgot_is_unknown(end: WireEnd) -> None:
    producer = open_stream(end)
    sent = fly(end, producer, b"a", b"b")
    [(sequence, _)] = published(end)
    end.acknowledge(producer, sequence, 2**64 - 1)

    assert [one.result().offset for one in sent] == [-1, -1]


def test_a_batch_travels_with_all_its_columns_and_is_cut_by_their_sizes(end: WireEnd) -> None:
    producer = open_stream(end)
    half = PRODUCER_BATCH_BYTES // 2
    sent = producer.send_batch(
        [b"a", b"b", b"c"],
        ["k", None, None],
        attributes=[None, {"large": "x" * half}, {"large": "y" * half}],
        ids=["1", None, "3"],
    )
    batches = [Batch(body) for _, _, _, body in end.frames()]

    assert [batch.payloads for batch in batches] == [[b"a", b"b"], [b"c"]]
    assert [batch.keys for batch in batches] == [["k", None], [None]]
    assert [[len(a) for a in batch.attributes or []] for batch in batches] == [[0, 1], [1]]
    assert [batch.ids for batch in batches] == [["1", None], ["3"]]
    assert [one.slot for one in sent] == [1, 0]


def refuse(end: WireEnd, producer: ProducerChannel, sequence: int, error: IsterError) -> None:
    """Answer a batch with an error."""
    end.tell(error_reply(error), channel=producer.channel, sequence=sequence)


def pulse(end: WireEnd) -> None:
    """Let a second go by."""
    end.now_ms += 1_000
    end.session.pulse()


@pytest.mark.parametrize("again", [StorageFailedError, StorageUncertainError])
def test_uncertain_batches_are_sent_again_under_their_numbers_and_in_their_order(
    end: WireEnd, again: type[StorageFailedError | StorageUncertainError]
) -> None:
    producer = open_stream(end)
    first, second = fly(end, producer, b"a", b"b")[0], fly(end, producer, b"c")[0]
    flying = published(end)
    for sequence, _ in flying:
        refuse(end, producer, sequence, StorageUncertainError("no disk"))
    later = fly(end, producer, b"d")[0]
    # Not at once: the broker tries its storage again once a second.
    assert published(end) == []
    pulse(end)
    # Alone: the storage may be mended any moment, and what is sent behind it be stored before it.
    [(sequence, batch)] = published(end)
    assert batch == (0, [b"a", b"b"])
    # What a broker says of the repetition alone tells nothing of the first time.
    refuse(end, producer, sequence, again("still no disk"))
    assert published(end) == []
    pulse(end)
    [(sequence, batch)] = published(end)
    pulse(end)
    assert published(end) == []
    end.acknowledge(producer, sequence, 50)
    [(sequence, next_)] = published(end)
    end.acknowledge(producer, sequence, 52)
    [(sequence, last)] = published(end)
    end.acknowledge(producer, sequence, 53)

    assert [batch, next_, last] == [(0, [b"a", b"b"]), (2, [b"c"]), (3, [b"d"])]
    assert [sent.result().offset for sent in (first, second, later)] == [50, 52, 53]
    assert producer.pending_bytes == 0


def test_queue_goes_on_when_an_uncertain_batch_is_refused_for_another_reason(end: WireEnd) -> None:
    producer = open_stream(end)
    [first] = fly(end, producer, b"a")
    [(sequence, _)] = published(end)
    refuse(end, producer, sequence, StorageUncertainError("no disk"))
    fly(end, producer, b"b")
    pulse(end)
    [(sequence, _)] = published(end)

    refuse(end, producer, sequence, TopicNotFoundError(TOPIC))

    assert [batch for _, batch in published(end)] == [(1, [b"b"])]
    assert isinstance(first.exception(), StorageUncertainError)


def test_batch_that_is_uncertain_until_its_time_is_over_fails_as_uncertain(end: WireEnd) -> None:
    producer = open_stream(end)
    [sent] = fly(end, producer, b"a")
    for _ in range(TIMEOUT_MS // 1_000 + 2):
        for sequence, _ in published(end):
            refuse(end, producer, sequence, StorageUncertainError("no disk"))
        pulse(end)

    assert isinstance(sent.exception(), StorageUncertainError)
    assert producer.pending_bytes == 0


def test_batch_that_was_refused_for_certain_is_not_sent_again(end: WireEnd) -> None:
    producer = open_stream(end)
    [sent] = fly(end, producer, b"a")
    [(sequence, _)] = published(end)
    refuse(end, producer, sequence, StorageFailedError("no disk"))
    pulse(end)

    assert isinstance(sent.exception(), StorageFailedError)
    assert published(end) == []
