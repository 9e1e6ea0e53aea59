"""Requests and replies: answers find the asker, and nobody waits for a responder there is not."""

import pytest
from tests.unit.broker.fakes import Bench, FakeSink

from ister.base.errors import (
    BadBatchError,
    BatchTooLargeError,
    LimitReachedError,
    MessageTooLargeError,
)
from ister.base.limits import BATCH_REPLIES_MAX
from ister.codec import Batch, Codec, available, encode

ME, OTHER = 11, 22


def bench_with(*sessions: int, **limits: int) -> tuple[Bench, list[FakeSink]]:
    bench = Bench(**limits)  # type: ignore[arg-type] # mypy thinks of `random_slot` too
    sinks = [FakeSink() for _ in sessions]
    for session, sink in zip(sessions, sinks, strict=True):
        bench.broker.replies.sinks[session] = sink
    return bench, sinks


def answers(*payloads: bytes, to: list[tuple[int, int]]) -> Batch:
    return Batch(b"".join(encode(payloads, replies=to)))


def test_a_request_reaches_the_responder_with_its_address() -> None:
    bench, _ = bench_with(ME)
    responder = bench.consume()
    bench.publish(b"q", replies=[(ME, 5)])

    assert responder.sink.batches[0][2].replies == [(ME, 5)]


def test_an_answer_goes_to_the_client_that_asked() -> None:
    bench, [me, other] = bench_with(ME, OTHER)
    bench.broker.reply(answers(b"r", to=[(ME, 5)]))

    assert ([b.payloads for b in me.replies], other.replies) == ([[b"r"]], [])


def test_answers_for_several_clients_are_sorted_out() -> None:
    bench, [me, other] = bench_with(ME, OTHER)
    bench.broker.reply(answers(b"1", b"2", b"3", to=[(ME, 5), (OTHER, 5), (ME, 6)]))

    assert [(b.payloads, b.replies) for b in me.replies] == [([b"1", b"3"], [(ME, 5), (ME, 6)])]
    assert [(b.payloads, b.replies) for b in other.replies] == [([b"2"], [(OTHER, 5)])]


def test_an_answer_to_a_client_that_left_is_dropped() -> None:
    bench, [me] = bench_with(ME)
    bench.broker.replies.sinks.pop(ME)
    bench.broker.reply(answers(b"r", to=[(ME, 5)]))

    assert me.replies == []


def test_answers_without_addresses_are_refused() -> None:
    with pytest.raises(BadBatchError, match="addresses"):
        Bench().broker.reply(Batch(b"".join(encode([b"r"]))))


def test_an_answer_over_the_message_limit_is_refused() -> None:
    bench, _ = bench_with(ME, message_bytes_max=100)

    with pytest.raises(MessageTooLargeError):
        bench.broker.reply(answers(b"x" * 101, to=[(ME, 5)]))


@pytest.mark.parametrize("codec", [c for c in available() if c is not Codec.NONE])
def test_answers_that_unpack_to_more_than_a_batch_may_hold_are_refused(codec: Codec) -> None:
    bench, _ = bench_with(ME, batch_bytes_max=1_000)
    batch = Batch(b"".join(encode([bytes(2_000)], replies=[(ME, 5)], codec=codec)))

    with pytest.raises(BatchTooLargeError):
        bench.broker.reply(batch)


def test_a_request_to_nobody_is_told_at_once() -> None:
    bench, [me] = bench_with(ME)
    bench.publish(b"q", replies=[(ME, 5)])

    assert me.unanswered == [5]


def test_a_request_with_a_responder_is_not_told() -> None:
    bench, [me] = bench_with(ME)
    bench.consume()
    bench.publish(b"q", replies=[(ME, 5)])

    assert me.unanswered == []


def test_a_request_that_waits_for_a_slow_responder_counts_as_reached() -> None:
    bench, [me] = bench_with(ME)
    bench.consume(credit=0)
    bench.publish(b"q", replies=[(ME, 5)])

    assert me.unanswered == []


def test_of_a_batch_only_the_requests_that_reached_nobody_are_told() -> None:
    bench, [me] = bench_with(ME)
    bench.consume(key_filters=["a*"])
    bench.publish(*[b"q"] * 3, keys=["a1", "b1", None], replies=[(ME, 5), (ME, 6), (ME, 7)])

    assert me.unanswered == [6, 7]


def test_requests_that_two_subscriptions_divide_between_them_are_all_reached() -> None:
    bench, [me] = bench_with(ME)
    bench.consume(subscription="a", key_filters=["a"])
    bench.consume(subscription="b", key_filters=["b"])
    bench.publish(b"q", b"q", keys=["a", "b"], replies=[(ME, 5), (ME, 6)])

    assert me.unanswered == []


def test_a_key_no_consumer_takes_reaches_nobody() -> None:
    bench, [me] = bench_with(ME)
    bench.consume(type="key_shared", key_filters=["a*"])
    bench.publish(b"q", b"q", keys=["a1", "b1"], replies=[(ME, 5), (ME, 6)])

    assert me.unanswered == [6]


def test_every_asker_is_told_of_its_own_requests() -> None:
    bench, [me, other] = bench_with(ME, OTHER)
    bench.publish(b"q", b"q", b"q", replies=[(ME, 5), (OTHER, 9), (ME, 6)])

    assert (me.unanswered, other.unanswered) == ([5, 6], [9])


def test_an_asker_that_left_is_not_told() -> None:
    bench, [me] = bench_with(ME)
    bench.broker.replies.sinks.pop(ME)
    bench.publish(b"q", replies=[(ME, 5)])

    assert me.unanswered == []


def test_requests_are_shared_among_responders_with_their_addresses() -> None:
    bench, _ = bench_with(ME)
    two = [bench.consume(type="shared", policy="round_robin") for _ in range(2)]
    bench.publish(b"1", b"2", replies=[(ME, 5), (ME, 6)])

    assert [c.sink.batches[0][2].replies for c in two] == [[(ME, 5)], [(ME, 6)]]


def test_a_batch_with_more_addresses_than_allowed_is_refused() -> None:
    bench, [me] = bench_with(ME)
    most = [(ME, number) for number in range(BATCH_REPLIES_MAX)]
    bench.broker.reply(answers(*[b""] * len(most), to=most))

    with pytest.raises(LimitReachedError, match="batch_replies_max"):
        bench.broker.reply(answers(*[b""] * (len(most) + 1), to=[*most, (ME, 0)]))
    with pytest.raises(LimitReachedError, match="batch_replies_max"):
        bench.publish(*[b""] * (len(most) + 1), replies=[*most, (ME, 0)])
    assert [batch.count for batch in me.replies] == [BATCH_REPLIES_MAX]
