"""The clock goes back over a restart, or another machine with a slower clock takes over."""

import pytest
from tests.unit.broker.streambench import Outcome, StreamBench, at_time

from ister.base import StreamSettings
from ister.broker.durable.lease_numbers import COUNT_MAX, SLOTS_MAX, lease_numbers, slot_of
from ister.broker.state.state import State, TopicRecord

TOPIC = "/default/orders"
HOUR_MS = 3_600_000


@pytest.fixture(params=["fsync", "object"])
def bench(request: pytest.FixtureRequest) -> StreamBench:
    """A broker with a stream on its disk, or in an object store."""
    made = StreamBench(objects=True)
    made.create(TOPIC, durability=request.param, max_age_ms=HOUR_MS // 2)
    return made


def times(bench: StreamBench) -> list[int]:
    """Return the stored publish time of each message."""
    topic, found = bench.topic(TOPIC), {}
    for offset in range(topic.first_offset, topic.next_offset):
        plan = topic.storage.log.plan(topic.record.topic, offset, 1 << 20)
        assert plan is not None
        for batch in plan.run():
            found.update(dict.fromkeys(batch.offsets, batch.publish_time_ms))
    return [found[offset] for offset in sorted(found)]


def checkpoint(bench: StreamBench) -> None:
    outcome = Outcome()
    bench.topic(TOPIC).storage.checkpoint(outcome)
    bench.settle()
    assert outcome.error is None


@pytest.mark.parametrize("with_checkpoint", [False, True])
def test_publish_times_never_go_back_over_a_restart(
    bench: StreamBench, with_checkpoint: bool
) -> None:
    bench.publish(b"before", topic=TOPIC)
    first_ms = bench.clock.now_ms()
    if with_checkpoint:
        checkpoint(bench)
    bench.restart(after_ms=-HOUR_MS)
    bench.publish(b"after", topic=TOPIC)

    assert times(bench) == [first_ms, first_ms]


def test_a_position_is_found_by_time_after_the_clock_went_back(bench: StreamBench) -> None:
    bench.publish(b"0", topic=TOPIC)
    bench.restart(after_ms=-HOUR_MS)
    bench.publish(b"1", topic=TOPIC)
    bench.publish(b"2", topic=TOPIC)
    stored = times(bench)

    assert stored == sorted(stored)
    found = bench.consume(TOPIC, "late", start=at_time(stored[0])).payloads
    assert found == [b"0", b"1", b"2"]


def test_retention_by_age_keeps_messages_published_after_the_clock_went_back(
    bench: StreamBench,
) -> None:
    bench.publish(b"0", topic=TOPIC)
    bench.restart(after_ms=-HOUR_MS)
    bench.publish(b"1", topic=TOPIC)
    bench.broker.purge(TOPIC, 1, lambda _: None)
    bench.settle()
    # The clock is set right again: what was published a moment ago is not an hour old.
    bench.restart(after_ms=HOUR_MS)
    bench.advance(5_000)

    assert [message.payload for message in bench.stored(TOPIC)] == [b"1"]


def test_times_of_a_transaction_and_of_stages_are_restored(bench: StreamBench) -> None:
    transaction = bench.begin()
    bench.stage(transaction, 0, b"0")
    assert not isinstance(bench.commit(transaction, [TOPIC]).result, Exception)
    first_ms = bench.topic(TOPIC).record.last_ms
    assert first_ms == bench.clock.now_ms()
    bench.restart(after_ms=-HOUR_MS)

    assert bench.topic(TOPIC).record.last_ms == first_ms


def test_snapshot_keeps_the_last_publish_time_and_one_without_it_opens() -> None:
    state = State()
    record = state.topics[7] = TopicRecord(7, TOPIC, StreamSettings(), state.budgets)
    record.last_ms = 123
    again = State()
    again.restore(state.encode())

    assert again.topics[7].last_ms == 123
    # As it was before times were kept: the row ends with the ids.
    encoded = state.encode()
    at = encoded.index(b"\x98\x07")
    older = encoded.replace(b"\x98\x07", b"\x97\x07").replace(b"\x7b", b"", 1)
    assert at > 0
    former = State()
    former.restore(older)
    assert former.topics[7].last_ms == 0


def test_life_rises_with_every_start_whatever_the_clock_says(bench: StreamBench) -> None:
    bench.publish(b"0", topic=TOPIC)
    lives, leases = [], []
    for after_ms in (0, -HOUR_MS, 0, HOUR_MS, -2 * HOUR_MS):
        bench.restart(after_ms=after_ms)
        member = bench.consume(TOPIC, "s")
        lives.append(member.membership.life)
        leases += [message.lease for message in member.take()]
        bench.seek("earliest", TOPIC)
        lives.append(member.membership.life)
        leases += [message.lease for message in member.take()]

    assert lives == sorted(set(lives))
    assert leases == sorted(set(leases))
    assert len(leases) == 10


@pytest.mark.parametrize("epoch", [1, 2, 32_767, 32_768, 10**9])
def test_lease_numbers_are_not_reused_after_a_restart(epoch: int) -> None:
    first = next(lease_numbers(epoch=epoch, journal=1, slot=SLOTS_MAX - 1))
    following = next(lease_numbers(epoch=epoch + 1, journal=1, slot=SLOTS_MAX - 1))

    assert 0 < first < 2**63
    assert slot_of(first) == (1, SLOTS_MAX - 1)
    last = first + ((COUNT_MAX - 1) << 18)
    assert following > last or following < first
