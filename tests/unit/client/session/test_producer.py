"""The sending half: batches, the window, acknowledgements, what a lost connection does."""

from collections import deque

import pytest
from tests.unit.client.session.wire_end import (
    MESSAGE_BYTES_MAX,
    TIMEOUT_MS,
    TOPIC,
    Waiter,
    WireEnd,
    send,
)

from ister.base.errors import (
    BadRequestError,
    BatchTooLargeError,
    ClosedError,
    ConnectionLostError,
    MessageTooLargeError,
    ProducerFullError,
    RequestTimeoutError,
)
from ister.base.limits import (
    PRODUCER_BATCH_BYTES,
    PRODUCER_BATCH_COUNT,
    PRODUCER_PENDING_BYTES_MAX,
    PRODUCER_WINDOW_BYTES,
)
from ister.client.session import (
    MESSAGE_OVERHEAD_BYTES,
    MessageId,
    ProducerChannel,
    Sent,
    cut_batches,
)
from ister.wire import error_reply


@pytest.fixture
def end() -> WireEnd:
    """A connected session."""
    made = WireEnd()
    made.connect()
    return made


def test_sends_of_one_turn_travel_together(end: WireEnd) -> None:
    producer = end.open_producer()
    sent = [send(producer, b"%d" % n) for n in range(3)]
    [(channel, sequence, payloads)] = end.published()

    assert channel == producer.channel
    assert payloads == [b"0", b"1", b"2"]
    assert not sent[0].done()
    end.acknowledge(producer, sequence, 40)
    assert [s.result() for s in sent] == [MessageId(TOPIC, 40 + n) for n in range(3)]
    assert list(producer.pending()) == []
    assert producer.pending_bytes == 0


def test_batches_are_acknowledged_in_any_order(end: WireEnd) -> None:
    producer = end.open_producer()
    first = send(producer, b"a")
    [(_, one, _)] = end.published()
    second = send(producer, b"b")
    [(_, two, _)] = end.published()

    end.acknowledge(producer, two, 11)
    assert (first.done(), second.done()) == (False, True)
    end.acknowledge(producer, one, 10)
    assert [first.result().offset, second.result().offset] == [10, 11]


def test_a_refused_batch_fails_alone(end: WireEnd) -> None:
    producer = end.open_producer()
    first = send(producer, b"a")
    [(_, one, _)] = end.published()
    second = send(producer, b"b")
    end.published()

    refusal = error_reply(BatchTooLargeError(2, 1))
    end.tell(refusal, channel=producer.channel, sequence=one)

    with pytest.raises(BatchTooLargeError):
        first.result()
    assert not second.done()


def test_a_batch_is_full_at_its_size_and_at_its_count(end: WireEnd) -> None:
    producer = end.open_producer()
    for _ in range(PRODUCER_BATCH_COUNT + 1):
        send(producer, b"")
    assert [len(payloads) for _, _, payloads in end.published()] == [PRODUCER_BATCH_COUNT, 1]

    for _ in range(3):
        send(producer, bytes(PRODUCER_BATCH_BYTES))
    assert [len(payloads) for _, _, payloads in end.published()] == [1, 1, 1]


def test_no_more_than_a_window_is_in_flight(end: WireEnd) -> None:
    producer = end.open_producer()
    size = PRODUCER_BATCH_BYTES
    count = PRODUCER_WINDOW_BYTES // size + 5
    for _ in range(count):
        send(producer, bytes(size))
    flying = end.published()

    assert len(flying) == -(-PRODUCER_WINDOW_BYTES // (size + MESSAGE_OVERHEAD_BYTES))
    assert producer.full
    end.acknowledge(producer, flying[0][1], 0)
    assert len(end.published()) == 1


def test_a_full_producer_refuses(end: WireEnd) -> None:
    producer = end.open_producer()
    payload = bytes(500_000)
    # The last few close the batch before them, which then counts.
    count = PRODUCER_PENDING_BYTES_MAX // len(payload) + 5
    with pytest.raises(ProducerFullError) as caught:
        deque((send(producer, payload) for _ in range(count)), maxlen=0)

    assert caught.value.topic == TOPIC
    assert caught.value.pending_bytes >= PRODUCER_PENDING_BYTES_MAX


@pytest.mark.parametrize("lone", [True, False])
def test_what_was_in_flight_fails_with_the_connection(end: WireEnd, lone: bool) -> None:
    producer = end.open_producer()
    flying = fly(end, producer, lone=lone)
    queued = send(producer, b"queued")
    end.session.disconnected("reset")

    assert isinstance(flying.exception(), ConnectionLostError)
    assert not queued.done()
    end.resume()
    [(_, sequence, payloads)] = end.published()
    assert payloads == [b"queued"]
    end.acknowledge(producer, sequence, 3)
    assert queued.result().offset == 3


@pytest.mark.parametrize("lone", [True, False])
def test_with_resend_what_was_in_flight_goes_again_and_first(end: WireEnd, lone: bool) -> None:
    producer = end.open_producer(resend=True)
    flying = fly(end, producer, lone=lone)
    end.published()
    queued = send(producer, b"queued")
    end.session.flush()
    end.session.disconnected("reset")

    assert not flying.done()
    end.resume()
    again = end.published()
    assert [payloads for _, _, payloads in again] == [[b"flying"], [b"queued"]]
    for offset, (_, sequence, _) in enumerate(again):
        end.acknowledge(producer, sequence, offset)
    assert [flying.result().offset, queued.result().offset] == [0, 1]
    assert list(producer.pending()) == []


def test_what_is_sent_offline_waits_for_the_next_connection(end: WireEnd) -> None:
    producer = end.open_producer()
    end.session.disconnected("reset")
    sent = send(producer, b"x")
    end.session.flush()

    assert not sent.done()
    end.resume()
    assert [payloads for _, _, payloads in end.published()] == [[b"x"]]


def test_a_message_fails_when_its_time_is_over_and_never_before(end: WireEnd) -> None:
    producer = end.open_producer()
    pulse(end, 1_000)
    end.now_ms += 999
    sent = send(producer, b"x")
    end.frames()
    queued_at_ms = end.now_ms
    while not sent.done():
        pulse(end, 1_000)

    assert isinstance(sent.exception(), RequestTimeoutError)
    assert TIMEOUT_MS <= end.now_ms - queued_at_ms <= TIMEOUT_MS + 2_000
    assert producer.pending_bytes == 0


def test_a_message_that_never_left_fails_in_time_too(end: WireEnd) -> None:
    producer = end.open_producer()
    end.session.disconnected("reset")
    sent = send(producer, b"x")
    end.session.flush()
    for _ in range(TIMEOUT_MS // 1_000 + 2):
        pulse(end, 1_000)

    assert isinstance(sent.exception(), RequestTimeoutError)


def test_a_late_acknowledgement_is_ignored(end: WireEnd) -> None:
    producer = end.open_producer()
    sent = send(producer, b"x")
    [(_, sequence, _)] = end.published()
    for _ in range(TIMEOUT_MS // 1_000 + 2):
        pulse(end, 1_000)
    end.acknowledge(producer, sequence, 5)

    assert isinstance(sent.exception(), RequestTimeoutError)


def test_closing_fails_what_is_pending(end: WireEnd) -> None:
    producer = end.open_producer()
    sent, waiter = send(producer, b"x"), Waiter()
    sent.batch.wait(waiter)
    end.session.close_producer(producer)

    assert waiter.done()
    with pytest.raises(ClosedError):
        sent.result()
    with pytest.raises(ClosedError):
        send(producer, b"y")


def test_a_refused_message_leaves_the_open_batch_as_it_was(end: WireEnd) -> None:
    producer = end.open_producer()
    send(producer, b"a")
    with pytest.raises(MessageTooLargeError):
        send(producer, bytes(MESSAGE_BYTES_MAX + 1))
    with pytest.raises(BadRequestError):
        send(producer, "text")  # type: ignore[arg-type]
    with pytest.raises(MessageTooLargeError):
        producer.send_batch([b"b", bytes(MESSAGE_BYTES_MAX + 1)], None)
    send(producer, b"c")

    assert [payloads for _, _, payloads in end.published()] == [[b"a", b"c"]]


def test_a_message_of_the_largest_size_is_taken(end: WireEnd) -> None:
    producer = end.open_producer()

    send(producer, bytes(MESSAGE_BYTES_MAX))
    assert len(end.published()) == 1


def test_a_result_that_is_not_there_yet_says_so(end: WireEnd) -> None:
    sent = send(end.open_producer(), b"x")

    assert sent.exception() is None
    with pytest.raises(BadRequestError):
        sent.result()


def test_cuts_keep_to_size_and_count() -> None:
    sizes = [PRODUCER_BATCH_BYTES // 2] * 5 + [0] * (PRODUCER_BATCH_COUNT + 1)
    cuts = list(cut_batches(sizes, PRODUCER_BATCH_BYTES))

    assert cuts[0] == (0, 2, PRODUCER_BATCH_BYTES)
    assert [start for start, _, _ in cuts[1:]] == [end for _, end, _ in cuts[:-1]]
    assert cuts[-1][1] == len(sizes)
    assert all(end - start <= PRODUCER_BATCH_COUNT for start, end, _ in cuts)
    assert [size for _, _, size in cuts] == [sum(sizes[start:end]) for start, end, _ in cuts]


def test_batches_keep_to_what_the_broker_takes() -> None:
    end = WireEnd()
    end.connect(batch_bytes_max=64 * 1024)
    producer = end.open_producer()
    for _ in range(20):
        send(producer, bytes(10_000))

    assert [len(payloads) for _, _, payloads in end.published()] == [4, 4, 4, 4, 4]


def fly(end: WireEnd, producer: ProducerChannel, *, lone: bool) -> Sent:
    """Send a message on either path, and have it leave."""
    sent = producer.send_lone(b"flying", Sent) if lone else send(producer, b"flying")
    assert sent is not None
    end.session.flush()
    return sent


def pulse(end: WireEnd, milliseconds: int) -> None:
    """Let time pass with the broker alive."""
    end.now_ms += milliseconds
    end.session.pulse()


def test_an_error_nobody_waited_for_is_kept_for_the_flush(end: WireEnd) -> None:
    producer = end.open_producer()
    send(producer, b"lost")
    [(_, sequence, _)] = end.published()
    producer.on_refused(sequence, ConnectionLostError("cut"))

    assert isinstance(producer.unseen_error(), ConnectionLostError)
    assert producer.unseen_error() is None


def test_an_error_told_by_a_future_is_not_told_again(end: WireEnd) -> None:
    producer = end.open_producer()
    sent = send(producer, b"lost")
    [(_, sequence, _)] = end.published()
    producer.on_refused(sequence, ConnectionLostError("cut"))
    with pytest.raises(ConnectionLostError):
        sent.result()

    assert producer.unseen_error() is None
