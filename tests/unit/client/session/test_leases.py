"""Leases: acknowledgements as runs, renewal, what a reconnect leaves of them."""

from collections import deque

import pytest
from tests.unit.client.session.leasing import acked, ignore, lease, renewed, take
from tests.unit.client.session.wire_end import LEASE_MS, TOPIC, Waiter, WireEnd

from ister.base import EARLIEST
from ister.base.errors import (
    BadBatchError,
    ClosedError,
    LeaseLostError,
)
from ister.base.limits import ACKS_PER_FRAME_MAX
from ister.client.session import LeasedBatch, SubscriptionChannel
from ister.wire import (
    BACKOFF_DELAY,
    CloseConsumer,
    ConsumerClosed,
    DescribeBroker,
    Done,
    Opcode,
    Run,
    Seek,
    Subscribed,
)

THIRD_MS = LEASE_MS // 3


@pytest.fixture
def end() -> WireEnd:
    """A connected session."""
    made = WireEnd()
    made.connect()
    return made


@pytest.fixture
def sub(end: WireEnd) -> SubscriptionChannel:
    """A consumer."""
    made = end.subscribe()
    end.frames()
    return made


# Collecting


def test_a_delivery_tells_topic_attempt_and_offsets(end: WireEnd, sub: SubscriptionChannel) -> None:
    end.deliver_leased(sub, [b"a", b"b"], lease=9, attempt=3, base_offset=40)
    batch = sub.inbox.take()

    assert isinstance(batch, LeasedBatch)
    assert (batch.topic, batch.payloads) == (TOPIC, [b"a", b"b"])
    assert (batch.lease.number, batch.lease.attempt) == (9, 3)
    assert list(batch.lease.offsets) == [40, 41]


def test_acks_in_order_are_one_run(end: WireEnd, sub: SubscriptionChannel) -> None:
    one = lease(end, sub, 4, number=7, start=100)
    for slot in range(4):
        one.ack(slot, slot + 1)

    assert end.said() == [(Opcode.ACK, 0, [(7, 100, 104)])]
    assert end.said() == []


@pytest.mark.parametrize(
    ("slots", "runs"),
    [
        ([3, 2, 1, 0], [(7, 100, 104)]),
        ([0, 2], [(7, 100, 101), (7, 102, 103)]),
        ([2, 0, 1], [(7, 100, 103)]),
        ([1, 1, 1], [(7, 101, 102)]),
        ([0, 1, 3, 0], [(7, 100, 102), (7, 103, 104)]),
    ],
)
def test_acks_in_any_order_are_as_few_runs_as_there_can_be(
    end: WireEnd, sub: SubscriptionChannel, slots: list[int], runs: list[Run]
) -> None:
    one = lease(end, sub, 4, number=7, start=100)
    for slot in slots:
        one.ack(slot, slot + 1)

    assert end.said() == [(Opcode.ACK, 0, runs)]


def test_acks_of_several_turns_are_runs_of_their_own(
    end: WireEnd, sub: SubscriptionChannel
) -> None:
    one = lease(end, sub, 4)
    one.ack(0, 1)
    first = end.said()
    one.ack(1, 2)

    assert first == [(Opcode.ACK, 0, [(1, 0, 1)])]
    assert end.said() == [(Opcode.ACK, 0, [(1, 1, 2)])]


def test_offsets_between_ours_are_not_acknowledged(end: WireEnd, sub: SubscriptionChannel) -> None:
    end.deliver_leased(sub, [b"x"] * 4, lease=5, offsets=[3, 4, 8, 9])
    one = take(end, sub)
    one.ack(0, 4)

    assert end.said() == [(Opcode.ACK, 0, [(5, 3, 5), (5, 8, 10)])]


def test_many_runs_are_cut_into_frames(end: WireEnd) -> None:
    sub = end.subscribe(count=100_000, size_bytes=100_000_000)
    end.frames()
    count = 2 * (ACKS_PER_FRAME_MAX + 1)
    one = lease(end, sub, count)
    for slot in range(0, count, 2):
        one.ack(slot, slot + 1)

    assert [len(runs) for _, _, runs in end.said()] == [ACKS_PER_FRAME_MAX, 1]


def test_a_message_that_is_acknowledged_twice_is_settled_once(
    end: WireEnd, sub: SubscriptionChannel
) -> None:
    one = lease(end, sub, 4)
    for slot in (2, 2, 0, 0, 2):
        one.ack(slot, slot + 1)
        end.frames()

    assert one.left == 2


def test_what_was_acknowledged_is_said_before_a_command(
    end: WireEnd, sub: SubscriptionChannel
) -> None:
    one = lease(end, sub)
    one.ack(0, 1)
    end.session.call(DescribeBroker(), ignore)

    assert [opcode for opcode, _, _, _ in end.frames()] == [Opcode.ACK, Opcode.CONTROL]


def test_nacks_with_the_same_delay_are_one_run(end: WireEnd, sub: SubscriptionChannel) -> None:
    one = lease(end, sub, 4, number=7, start=100)
    for slot, delay_ms in ((2, 500), (0, None), (1, None), (3, 500)):
        one.leases.nack(one, slot, delay_ms)

    runs = [(7, 102, 104, 500), (7, 100, 102, BACKOFF_DELAY)]
    assert end.said() == [(Opcode.NACK, 0, runs)]
    assert one.left == 0


def test_ack_through_says_the_furthest(end: WireEnd, sub: SubscriptionChannel) -> None:
    first, second = lease(end, sub, 4, number=1), lease(end, sub, 4, number=2, start=4)
    first.leases.ack_through(first, 3)
    first.leases.ack_through(second, 1)
    first.leases.ack_through(first, 2)

    assert end.said() == [(Opcode.ACK_THROUGH, 0, [(2, 5, 6)])]
    assert (first.left, second.left) == (0, 2)


def test_late_acks_the_broker_tells_of_are_counted(end: WireEnd, sub: SubscriptionChannel) -> None:
    acked(end, sub, 0, [(1, 10, 12), (2, 5, 6)])

    assert sub.leases.refused == 3


@pytest.mark.parametrize("offsets", [[5, 5], [6, 5], [2**63, 2**63 + 1]])
def test_a_delivery_whose_offsets_make_no_runs_is_refused(
    end: WireEnd, sub: SubscriptionChannel, offsets: list[int]
) -> None:
    signed = [offset - 2**64 if offset >= 2**63 else offset for offset in offsets]
    with pytest.raises(BadBatchError):
        end.deliver_leased(sub, [b"x", b"y"], offsets=signed)


def test_a_delivery_past_the_last_offset_is_refused(end: WireEnd, sub: SubscriptionChannel) -> None:
    with pytest.raises(BadBatchError):
        end.deliver_leased(sub, [b"x", b"y"], base_offset=2**63 - 1)


# Renewal


def test_a_lease_is_renewed_when_a_third_of_its_time_is_left(
    end: WireEnd, sub: SubscriptionChannel
) -> None:
    lease(end, sub, 4, number=7, start=100)

    end.now_ms += LEASE_MS - THIRD_MS - LEASE_MS // 12 - 1
    end.session.receivers.renew()
    assert end.said() == []
    end.now_ms += 1
    end.session.receivers.renew()
    assert end.said() == [(Opcode.EXTEND, 0, [(7, 100, 104, LEASE_MS)])]


def test_the_session_asks_to_be_woken_for_renewals(end: WireEnd) -> None:
    asked: list[int] = []
    end.session.receivers._on_lease = asked.append
    sub = end.subscribe()
    lease(end, sub, number=1)
    end.now_ms += 1_000
    lease(end, sub, number=2)
    [first] = asked
    end.now_ms = first
    end.session.receivers.renew()

    assert first == 1_000 + 2 * THIRD_MS
    assert asked == [first, first + 2 * THIRD_MS]


def test_only_what_is_unsettled_is_renewed(end: WireEnd, sub: SubscriptionChannel) -> None:
    one = lease(end, sub, 8, number=7)
    one.ack(0, 2)
    one.ack(4, 5)
    one.leases.nack(one, 7, None)
    end.frames()
    end.now_ms += LEASE_MS - THIRD_MS
    end.session.receivers.renew()

    assert end.said() == [(Opcode.EXTEND, 0, [(7, 2, 4, LEASE_MS), (7, 5, 7, LEASE_MS)])]


def test_a_settled_lease_is_not_renewed(end: WireEnd, sub: SubscriptionChannel) -> None:
    one = lease(end, sub, 4)
    one.ack(1, 4)
    one.ack(0, 2)
    end.frames()
    end.now_ms += LEASE_MS - THIRD_MS
    end.session.receivers.renew()

    assert one.left == 0
    assert end.said() == []


def test_a_longer_extension_is_left_alone(end: WireEnd, sub: SubscriptionChannel) -> None:
    one = lease(end, sub, 4, number=7)
    one.leases.extend(one, 2, 600_000, Waiter())
    [(_, sequence, _)] = end.said()
    acked(end, sub, sequence, [])
    end.now_ms += LEASE_MS - THIRD_MS
    end.session.receivers.renew()

    assert end.said() == [(Opcode.EXTEND, 0, [(7, 0, 2, LEASE_MS), (7, 3, 4, LEASE_MS)])]


def test_an_application_that_settles_nothing_gets_no_more_renewals(end: WireEnd) -> None:
    sub = end.subscribe(max_renewal_ms=60_000)
    lease(end, sub)
    end.frames()
    start_ms, last_ms = end.now_ms, 0
    for _ in range(100):
        end.now_ms += 1_000
        end.session.receivers.renew()
        if end.said():
            last_ms = end.now_ms

    assert start_ms + 60_000 - LEASE_MS < last_ms < start_ms + 60_000


def test_what_waits_for_an_application_that_gets_on_is_renewed(end: WireEnd) -> None:
    sub = end.subscribe(count=1_000, max_renewal_ms=60_000)
    one = lease(end, sub, 100, number=1)
    end.deliver_leased(sub, [b"x"], lease=2, base_offset=100)
    end.frames()
    last_ms = 0
    for slot in range(100):
        end.now_ms += 2_000
        one.ack(slot, slot + 1)
        end.session.receivers.renew()
        if renewed(end, number=2):
            last_ms = end.now_ms

    assert end.now_ms - last_ms < LEASE_MS


def test_a_message_that_is_stuck_is_not_renewed_because_others_get_on(end: WireEnd) -> None:
    sub = end.subscribe(max_renewal_ms=60_000)
    stuck = lease(end, sub, 1, number=1)
    end.frames()
    last_ms = start_ms = end.now_ms
    for number in range(2, 100):
        end.now_ms += 1_000
        other = lease(end, sub, 1, number=number, start=number)
        other.ack(0, 1)
        end.session.receivers.renew()
        if renewed(end, number=1):
            last_ms = end.now_ms

    assert stuck.left == 1
    assert last_ms < start_ms + 60_000


# Reconnects, seeks, ends


def test_acks_collected_while_offline_leave_on_the_next_connection(
    end: WireEnd, sub: SubscriptionChannel
) -> None:
    one = lease(end, sub)
    end.session.disconnected("reset")
    one.ack(0, 3)
    assert end.said() == []
    end.resume()

    assert end.said() == [(Opcode.ACK, 0, [(1, 0, 3)])]


def test_the_buffer_stays_when_the_broker_is_the_same(
    end: WireEnd, sub: SubscriptionChannel
) -> None:
    end.deliver_leased(sub, [b"x"] * 4)
    end.resume()

    assert [count for count, _ in end.credit()] == [96]
    assert take(end, sub).left == 4


def test_a_broker_that_was_restarted_makes_leases_void(
    end: WireEnd, sub: SubscriptionChannel
) -> None:
    taken = lease(end, sub, 4, number=1)
    end.deliver_leased(sub, [b"x"] * 4, lease=2)
    buffer = deque([b"waits for the application"])
    sub.buffers.append(buffer)
    end.frames()
    taken.ack(0, 1)
    end.session.disconnected("restart")
    end.resume(leases=77)
    taken.ack(1, 3)
    late = Waiter()
    taken.leases.confirm(taken, 3, 4, late)

    assert taken.void
    assert sub.inbox.take() is None
    assert len(buffer) == 0
    assert sub.leases.refused == 3
    assert isinstance(late.error, LeaseLostError)
    assert end.said() == []


def test_credit_of_dropped_messages_goes_back_once(end: WireEnd, sub: SubscriptionChannel) -> None:
    end.deliver_leased(sub, [b"x"] * 40)
    end.resume(leases=77)

    assert end.credit() == [(100, 1_000_000)]
    end.deliver_leased(sub, [b"x"] * 100, lease=2)


def test_live_messages_are_not_dropped_for_a_restarted_broker(
    end: WireEnd, sub: SubscriptionChannel
) -> None:
    end.deliver(sub, [b"live"])
    end.resume(leases=77)

    batch = sub.inbox.take()
    assert batch is not None
    assert batch.payloads == [b"live"]


def test_a_seek_drops_what_came_before_its_answer(end: WireEnd, sub: SubscriptionChannel) -> None:
    taken = lease(end, sub, 40, number=1)
    end.deliver_leased(sub, [b"old"] * 50, lease=2)
    end.frames()
    end.session.receivers.seek(Seek(topic=TOPIC, subscription="billing", to=EARLIEST), ignore)
    [(sequence, _)] = end.commands()
    end.deliver_leased(sub, [b"older"], lease=3)
    end.tell(Done(), sequence=sequence)
    [(credit, _)] = end.credit()
    end.deliver_leased(sub, [b"new"], lease=4)

    batch = sub.inbox.take()
    assert batch is not None
    assert batch.payloads == [b"new"]
    assert taken.void
    assert credit == 91


def test_a_broker_that_tells_of_a_seek_itself_makes_its_answer_harmless(
    end: WireEnd, sub: SubscriptionChannel
) -> None:
    end.deliver_leased(sub, [b"old"], lease=1)
    end.session.receivers.seek(Seek(topic=TOPIC, subscription="billing", to=EARLIEST), ignore)
    [(sequence, _)] = end.commands()
    end.tell(Subscribed(active=True, leases=5), channel=sub.channel)
    end.deliver_leased(sub, [b"new"], lease=2)
    end.tell(Done(), sequence=sequence)

    batch = sub.inbox.take()
    assert batch is not None
    assert batch.payloads == [b"new"]


def test_closing_says_what_was_acknowledged_first(end: WireEnd, sub: SubscriptionChannel) -> None:
    one = lease(end, sub)
    one.ack(0, 2)
    end.session.receivers.unsubscribe(sub, lambda _: None)

    assert [opcode for opcode, _, _, _ in end.frames()] == [Opcode.ACK, Opcode.CONTROL]


def test_closing_waits_for_confirmations(end: WireEnd, sub: SubscriptionChannel) -> None:
    one, waiter = lease(end, sub), Waiter()
    one.leases.confirm(one, 0, 1, waiter)
    end.session.receivers.unsubscribe(sub, lambda _: None)
    [(opcode, _, sequence, _)] = end.frames()

    assert opcode == Opcode.ACK
    acked(end, sub, sequence, [])
    assert waiter.done()
    [(_, command)] = end.commands()
    assert command == CloseConsumer(channel=sub.channel)


def test_a_closed_consumer_hands_out_no_leased_messages(
    end: WireEnd, sub: SubscriptionChannel
) -> None:
    one, waiter = lease(end, sub), Waiter()
    end.deliver_leased(sub, [b"x"], lease=2)
    one.leases.confirm(one, 0, 1, waiter)
    end.tell(ConsumerClosed(reason="subscription was deleted"), channel=sub.channel)
    one.ack(0, 1)

    with pytest.raises(ClosedError):
        sub.inbox.take()
    assert isinstance(waiter.error, ClosedError)
    assert sub.leases.refused == 1


def test_a_client_that_leaves_nacks_what_was_received_and_gives_the_rest_back(end: WireEnd) -> None:
    streams, _live = end.subscribe(), end.subscribe()
    one = lease(end, streams)
    one.ack(0, 1)
    end.frames()
    one.ack(1, 2)
    end.session.receivers.leave()
    frames = end.frames()

    assert [opcode for opcode, _, _, _ in frames] == [Opcode.ACK, Opcode.NACK, Opcode.CONTROL]
