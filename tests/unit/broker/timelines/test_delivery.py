"""Messages reach one consumer each, in their order, never before they are due."""

import pytest
from tests.unit.broker.timelines.timelinebench import LEASE_MS, TOPIC, Client, TimelineBench

from ister.base.errors import (
    BadRequestError,
    MessageNotFoundError,
    TimelineLeaseLostError,
    TopicNotFoundError,
)
from ister.base.limits import TIMELINE_BYTES
from ister.broker.timelines.leasing.throttle import (
    GENTLE_COUNT_MAX,
    LATE_MS,
    REST_MS_MAX,
    ROUND_COUNT_MAX,
)
from ister.broker.timelines.timelines import GIVE_WAY_MS
from ister.timeline import Changed, Done, Extend, Row


@pytest.fixture
def bench() -> TimelineBench:
    return TimelineBench()


def test_a_message_is_delivered_when_it_is_due_and_not_before(bench: TimelineBench) -> None:
    client = bench.consume()
    bench.put("a", 500)

    bench.advance(499)
    assert client.ids == []
    bench.advance(1)
    assert client.ids == ["a"]


def test_a_message_of_the_past_is_delivered_at_once(bench: TimelineBench) -> None:
    client = bench.consume()

    bench.put("a", -60_000)

    assert client.ids == ["a"]


def test_a_message_beyond_the_window_is_not_in_memory_and_delivered_in_time(
    bench: TimelineBench,
) -> None:
    client = bench.consume()
    bench.put("a", 3 * 3_600_000)

    assert bench.timelines.slots == 0
    bench.advance(3 * 3_600_000 - 1)
    assert client.ids == []
    bench.advance(1)
    assert client.ids == ["a"]


def test_messages_that_wait_for_a_consumer_are_delivered_earliest_first(
    bench: TimelineBench,
) -> None:
    for name, in_ms in (("b", 20), ("c", 30), ("a", 10), ("b2", 20)):
        bench.put(name, in_ms)
    bench.advance(1_000)

    client = bench.consume()

    assert client.ids == ["a", "b", "b2", "c"]


def test_each_message_goes_to_one_of_many_consumers(bench: TimelineBench) -> None:
    clients = [bench.consume(f"worker-{n}") for n in range(4)]
    names = [str(n) for n in range(100)]

    bench.put_many(names, 100)
    bench.advance(100)

    assert sorted(name for client in clients for name in client.ids) == sorted(names)
    assert [len(client.ids) for client in clients] == [25] * 4


@pytest.mark.parametrize("count", [2, 3, 5])
@pytest.mark.parametrize("looks", [0, 1, 2, 3])
def test_a_message_whose_lease_ended_goes_to_the_next_consumer_however_often_one_looks(
    count: int, looks: int
) -> None:
    bench = TimelineBench(max_leases=0)
    clients = [bench.consume(f"worker-{n}") for n in range(count)]
    bench.put("a", 0)

    for _ in range(2 * count - 1):
        for _ in range(looks):
            clients[0].grant(1)
        bench.advance(LEASE_MS)

    assert [client.ids for client in clients] == [["a", "a"]] * count


def test_a_consumer_has_no_more_unfinished_messages_than_its_credit(bench: TimelineBench) -> None:
    client = bench.consume(credit=2)
    bench.put_many(["a", "b", "c", "d", "e"], 0)

    assert client.ids == ["a", "b"]
    client.done("a")
    assert client.ids == ["a", "b", "c"]
    client.grant(1)
    assert client.ids == ["a", "b", "c", "d"]


def test_one_with_room_gets_what_another_has_no_room_for(bench: TimelineBench) -> None:
    busy = bench.consume("busy", credit=1)
    idle = bench.consume("idle", credit=10)

    bench.put_many(list("abcdef"), 0)

    assert len(busy.ids) == 1
    assert len(idle.ids) == 5


# Sent ahead of their time


def test_a_message_is_sent_ahead_and_leased_from_its_due_time(bench: TimelineBench) -> None:
    client = bench.consume(prefetch_ms=200)
    bench.put("a", 1_000)

    bench.advance(899)
    assert client.ids == []
    bench.advance(1)

    (row,) = client.rows
    assert client.begun == []
    assert row.position_ms == row.due_ms + LEASE_MS
    bench.advance(100)
    assert client.begun == [(row.due_ms, row)]


def test_messages_of_a_while_are_sent_ahead_together(bench: TimelineBench) -> None:
    client = bench.consume(prefetch_ms=200)
    for slot in range(50):
        bench.put(str(slot), 1_000 + slot)

    bench.advance(900)

    assert client.batches == [50]


def test_while_others_publish_messages_go_out_in_small_portions(bench: TimelineBench) -> None:
    client = bench.consume(credit=1_000)
    names = [str(n) for n in range(ROUND_COUNT_MAX)]
    bench.put_many(names, 100)
    bench.published += 1

    bench.advance(100)

    assert client.ids == names
    assert max(client.batches) == GENTLE_COUNT_MAX
    bench.put_many([f"later-{n}" for n in names], GIVE_WAY_MS)
    bench.advance(GIVE_WAY_MS)
    assert max(client.batches) == ROUND_COUNT_MAX


def in_a_burst(bench: TimelineBench) -> list[str]:
    """Have a burst of two rounds that was due a while ago, while others publish; return its ids."""
    names = [f"{n:03}" for n in range(2 * GENTLE_COUNT_MAX)]
    bench.put_many(names, -LATE_MS)
    # The round by which it is seen that this is a burst.
    bench.published += 1
    first = bench.consume("first", credit=1)
    assert first.ids == names[:1]
    first.close()
    return names[1:]


def test_a_round_of_a_burst_goes_to_one_consumer_and_the_next_one_to_another(
    bench: TimelineBench,
) -> None:
    names = in_a_burst(bench)
    one, other = bench.consume("one", credit=1_000), bench.consume("other", credit=1_000)

    bench.advance(REST_MS_MAX)

    assert (one.ids, other.ids) == (names[:GENTLE_COUNT_MAX], names[GENTLE_COUNT_MAX:])


def test_a_round_of_a_burst_is_not_smaller_for_consumers_that_have_little_room(
    bench: TimelineBench,
) -> None:
    names = in_a_burst(bench)
    few, others = bench.consume("few", credit=3), bench.consume("others", credit=1_000)

    bench.advance(REST_MS_MAX)

    assert few.ids == names[:3]
    assert others.batches[0] == GENTLE_COUNT_MAX - 3


def test_a_message_due_now_is_not_held_up_by_those_sent_ahead(bench: TimelineBench) -> None:
    client = bench.consume(prefetch_ms=5_000, credit=2)
    bench.put_many(["later-1", "later-2", "later-3"], 2_000)

    assert client.ids == ["later-1", "later-2"]
    bench.put("now", 0)
    assert client.begun_ids == ["now"]


def test_messages_that_were_sent_ahead_count_against_the_credit_once_due(
    bench: TimelineBench,
) -> None:
    client = bench.consume(prefetch_ms=1_000, credit=1)
    bench.put("a", 500)
    bench.advance(500)
    bench.put("b", 0)

    assert client.begun_ids == ["a"]
    client.done("a")
    assert client.begun_ids == ["a", "b"]


def test_a_busy_consumer_is_sent_nothing_ahead(bench: TimelineBench) -> None:
    busy = bench.consume("busy", prefetch_ms=1_000, credit=1)
    bench.put("a", 0)
    idle = bench.consume("idle", prefetch_ms=1_000, credit=1)

    bench.put("b", 100)

    assert busy.ids == ["a"]
    assert idle.ids == ["b"]


# Leases


def test_a_message_comes_back_when_its_lease_ends(bench: TimelineBench) -> None:
    first = bench.consume("first", lease_ms=1_000, credit=1)
    bench.put("a", 0)
    second = bench.consume("second")

    bench.advance(999)
    assert second.ids == []
    bench.advance(1)

    assert second.ids + first.ids[1:] == ["a"]
    assert bench.report().lost == 1


def test_the_room_of_a_lost_lease_is_free_also_behind_a_backlog(
    bench: TimelineBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ister.broker.timelines.leasing.window.SLOTS_MAX", 10)
    bench.create("/default/b")
    client = bench.consume(lease_ms=1_000, credit=5, topic="/default/b")
    for slot in range(100):
        bench.put(str(slot), -slot, topic="/default/b")

    bench.advance(1_000)

    assert len(client.ids) == 10


def test_who_is_late_with_done_is_refused(bench: TimelineBench) -> None:
    client = bench.consume(lease_ms=1_000)
    bench.put("a", 0)
    former = client.working["a"]
    bench.advance(1_000)

    (outcome,) = client.finish(Done(0, "a", "", former.version))

    assert isinstance(outcome, TimelineLeaseLostError)
    assert client.ids == ["a", "a"]


def test_an_extended_lease_lasts_longer_and_never_longer_than_the_topic_allows() -> None:
    bench = TimelineBench(lease_ms_max=5_000)
    client = bench.consume(lease_ms=1_000)
    bench.put("a", 0)

    refused = client.extend("a", bench.now_ms + 5_001)
    outcome = client.extend("a", bench.now_ms + 5_000)

    assert isinstance(refused, BadRequestError)
    assert "at most 5s, not 5.001s" in str(refused)
    assert isinstance(outcome, Changed)
    assert outcome.position_ms == bench.now_ms + 5_000
    bench.advance(4_999)
    assert client.ids == ["a"]
    bench.advance(1)
    assert client.ids == ["a", "a"]


def test_an_extension_that_is_too_long_costs_nothing_but_itself() -> None:
    bench = TimelineBench(lease_ms_max=5_000)
    client = bench.consume(lease_ms=1_000)
    for name in ("a", "b", "c", "d"):
        bench.put(name, 0)
    rows = [client.working[name] for name in ("a", "b", "c", "d")]
    end_ms = bench.now_ms + 6_000

    outcomes = client.finish(
        Extend(0, "a", "", rows[0].version, end_ms),
        Done(0, "b", "", rows[1].version),
        Extend(0, "c", "", rows[2].version, end_ms),
        Extend(0, "d", "", rows[3].version, end_ms - 1_000),
    )

    assert [type(outcome) for outcome in outcomes] == [
        BadRequestError,
        Changed,
        BadRequestError,
        Changed,
    ]
    assert [outcome.id for outcome in outcomes if isinstance(outcome, Changed)] == ["b", "d"]


def test_a_released_message_is_due_at_the_time_it_was_released_to(bench: TimelineBench) -> None:
    client = bench.consume()
    bench.put("a", 0)

    client.release("a", bench.now_ms + 700)

    bench.advance(699)
    assert client.ids == ["a"]
    bench.advance(1)
    assert client.ids == ["a", "a"]


def test_what_is_done_is_gone(bench: TimelineBench) -> None:
    client = bench.consume()
    bench.put("a", 0)

    client.done("a")

    told: list[object] = []
    bench.timelines.get(TOPIC, "a", told.append)
    bench.settle()
    assert isinstance(told[0], MessageNotFoundError)
    bench.advance(2 * LEASE_MS)
    assert client.ids == ["a"]


# Consumers that come and go


def test_a_consumer_that_closes_gives_back_what_is_not_due(bench: TimelineBench) -> None:
    first = bench.consume("first", prefetch_ms=1_000)
    bench.put("live", 0)
    bench.put("early", 400)
    second = bench.consume("second")

    first.close()

    bench.advance(399)
    assert second.ids == []
    bench.advance(1)
    assert second.ids == ["early"]
    assert second.rows[0].leases == 1
    bench.advance(LEASE_MS - 401)
    assert second.ids == ["early"]
    bench.advance(1)
    assert second.ids == ["early", "live"]


def test_one_of_the_same_name_is_handed_the_leases_of_the_former(bench: TimelineBench) -> None:
    first = bench.consume("worker", prefetch_ms=1_000)
    bench.put("live", 0)
    bench.put("early", 400)

    second = bench.consume("worker", prefetch_ms=1_000)

    assert len(first.closed) == 1
    assert sorted(second.rows) == sorted(first.rows)
    assert isinstance(second.done("live"), Changed)
    bench.advance(400)
    assert second.begun_ids == ["live", "early"]


def test_one_that_comes_back_is_handed_its_live_leases(bench: TimelineBench) -> None:
    first = bench.consume("worker")
    bench.put("a", 0)
    first.close()

    second = bench.consume("worker")

    assert second.rows == first.rows
    assert isinstance(second.done("a"), Changed)


def test_who_was_replaced_changes_nothing_any_more(bench: TimelineBench) -> None:
    first = bench.consume("worker")
    bench.put("a", 0)
    version = first.working["a"].version
    bench.consume("worker")

    (outcome,) = first.finish(Done(0, "a", "", version))

    assert isinstance(outcome, TimelineLeaseLostError)


def test_a_lease_under_way_to_one_that_closes_is_given_back(bench: TimelineBench) -> None:
    first = bench.consume("first")
    bench.begin_change(bench.putting("a", 0))
    bench.settle_until(lambda: first.is_awaiting)
    first.close()

    second = bench.consume("second")

    assert first.ids == []
    assert second.ids == ["a"]
    assert second.rows[0].leases == 1


def test_one_that_leaves_gives_back_all_but_what_its_application_has(
    bench: TimelineBench,
) -> None:
    first = bench.consume("first", prefetch_ms=1_000)
    for name, due_ms in (("kept", 0), ("due", 0), ("early", 400)):
        bench.put(name, due_ms)
    assert first.consumer is not None
    told: list[str] = []

    first.consumer.leave(["kept"], lambda: told.append("left"))
    bench.settle()

    assert told == ["left"]
    second = bench.consume("second")
    assert second.ids == ["due"]
    bench.advance(400)
    assert second.ids == ["due", "early"]
    assert [row.leases for row in second.rows] == [1, 1]


def test_leaving_is_over_when_also_what_was_on_its_way_is_given_back(
    bench: TimelineBench,
) -> None:
    first = bench.consume("first")
    bench.begin_change(bench.putting("a", 0))
    bench.settle_until(lambda: first.is_awaiting)
    assert first.consumer is not None
    told: list[Row | None] = []

    first.consumer.leave([], lambda: told.append(bench.store.get(1, "a")))
    bench.settle()

    (row,) = told
    assert row is not None
    assert (row.holder, row.leases) == ("", 0)


def test_a_lease_under_way_to_one_that_is_replaced_goes_to_its_successor(
    bench: TimelineBench,
) -> None:
    first = bench.consume("worker")
    bench.begin_change(bench.putting("a", 0))
    bench.settle_until(lambda: first.is_awaiting)

    second = bench.consume("worker")

    assert first.ids == []
    assert second.ids == ["a"]


def test_the_consumers_of_a_deleted_topic_are_told(bench: TimelineBench) -> None:
    client = bench.consume()

    assert bench.delete_topic() is None

    assert len(client.closed) == 1
    assert not bench.timelines.has(TOPIC)
    assert isinstance(bench.put("a", 0), TopicNotFoundError)


@pytest.mark.parametrize(
    "options",
    [
        {"lease_ms": 9},
        {"lease_ms": 10**12},
        {"prefetch_ms": -1},
        {"prefetch_ms": 5_001},
        {"credit": -1},
        {"name": ""},
        {"name": "x" * 256},
    ],
)
def test_a_consumer_that_cannot_be_is_refused(
    bench: TimelineBench, options: dict[str, int]
) -> None:
    client = bench.consume(**options)  # type: ignore[arg-type]

    assert isinstance(client.error, BadRequestError)


class SlowClient(Client):
    """Closes its consumer when it is sent something, as a door does that cannot send it."""

    def deliver(self, channel: int, rows: list[Row], *, again: bool = False) -> None:
        assert self.consumer is not None
        self.batches.append(len(rows))
        self.consumer.close()


def test_what_a_consumer_is_not_sent_because_it_was_closed_is_given_back(
    bench: TimelineBench,
) -> None:
    size = TIMELINE_BYTES // 2 - 1
    puts = [bench.putting(name, 0)._replace(payload=bytes(size)) for name in "abc"]
    bench.change(*puts)
    slow = SlowClient(bench, "slow")
    bench.open(slow)
    bench.settle()
    assert slow.batches == [2]

    client = bench.consume()

    assert client.ids == ["c"]


# Priorities


def test_of_messages_that_are_due_the_lowest_level_goes_first() -> None:
    bench = TimelineBench(kind="priority")
    for level, in_ms in ((31, 0), (3, 10), (0, 20), (3, 5)):
        bench.put(f"{level}-{in_ms}", in_ms, level=level)
    bench.advance(100)

    client = bench.consume(credit=1)
    for _ in range(3):
        client.done(client.ids[-1])

    assert client.ids == ["0-20", "3-5", "3-10", "31-0"]


def test_a_moved_message_keeps_its_level() -> None:
    bench = TimelineBench(kind="priority")
    bench.put("low", 3_600_000, level=5)
    bench.put("high", 3_600_000, level=1)
    bench.change(bench.moving("low", 100), bench.moving("high", 200))
    bench.advance(300)

    client: Client = bench.consume()

    assert client.ids == ["high", "low"]


def test_a_timeline_takes_no_priorities(bench: TimelineBench) -> None:
    assert isinstance(bench.put("a", 0, level=1), BadRequestError)
