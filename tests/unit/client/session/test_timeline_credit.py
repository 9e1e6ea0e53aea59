"""How many messages a consumer of a timeline is sent at once."""

import pytest
from tests.unit.client.session.timeline_end import DUE_MS, TimelineEnd
from tests.unit.client.session.wire_end import Waiter

from ister.client.session.timelines.credit import FIRST, PATIENCE_MS, SOON_MS, Credit, is_left
from ister.wire import (
    DONE,
    EXTEND,
    RETURN,
    ConsumeTimeline,
    FinishLeases,
    Opcode,
    TimelineOpened,
    decode_command,
)


@pytest.fixture
def end() -> TimelineEnd:
    return TimelineEnd()


def grown(credit: Credit, now_ms: int = 0) -> Credit:
    """Return a credit whose application has kept up for a while."""
    while credit.level < credit.most:
        credit.on_held(credit.level, now_ms)
        assert credit.on_empty(0, now_ms) > 0
    return credit


def test_who_keeps_up_may_have_twice_as_many_each_time_and_no_more_than_was_asked_for() -> None:
    credit = Credit(11)

    levels = []
    for _ in range(5):
        credit.on_held(credit.level, 0)
        more = credit.on_empty(0, SOON_MS)
        levels.append((more, credit.level))

    assert levels == [(2, 4), (4, 8), (3, 11), (0, 11), (0, 11)]


def test_who_is_full_and_takes_long_has_no_more() -> None:
    credit = Credit(100)
    credit.on_held(FIRST, 0)

    assert credit.on_empty(0, SOON_MS + 1) == 0


def test_who_waits_and_was_never_full_has_no_more() -> None:
    credit = Credit(100)
    credit.on_held(FIRST - 1, 0)

    assert credit.on_empty(0, 1) == 0


def test_being_full_counts_from_when_it_began() -> None:
    credit = Credit(100)
    credit.on_held(FIRST, 0)
    credit.on_held(FIRST, SOON_MS)

    assert credit.on_empty(0, SOON_MS + 1) == 0


def test_who_gives_back_has_so_many_less_and_asks_for_one_when_it_waits_again() -> None:
    credit = grown(Credit(64))
    credit.on_given_back(60)
    assert credit.level == 4

    credit.on_given_back(60)
    assert credit.level == 0
    assert (credit.on_empty(0, 10), credit.level) == (1, 1)


def test_who_is_busy_with_all_it_may_have_and_waits_has_one_more() -> None:
    credit = grown(Credit(64))
    credit.on_given_back(59)

    assert (credit.on_empty(5, 10), credit.level) == (1, 6)


def test_after_a_lost_connection_there_is_room_for_one_at_least() -> None:
    credit = Credit(64)
    credit.on_given_back(64)
    credit.on_lost()

    assert credit.level == 1


def test_a_message_waits_for_some_seconds_or_half_of_its_lease() -> None:
    long, short = 1_000_000, 400

    assert not is_left(PATIENCE_MS, 0, long)
    assert is_left(PATIENCE_MS + 1, 0, long)
    assert not is_left(200, 0, short)
    assert is_left(201, 0, short)
    # One that is not due yet.
    assert not is_left(0, 100, long)


# As many as the application gets to


def test_a_consumer_that_keeps_up_may_have_more_and_is_opened_again_with_as_many(
    end: TimelineEnd,
) -> None:
    assert end.channel.command.credit == 2
    end.credit()

    end.due("a", "b")
    assert [end.take(), end.take(), end.take()] == ["a", "b", None]
    assert end.credit() == [(2, 0)]

    end.session.disconnected("test")
    end.connect()
    assert end.answer(TimelineOpened(now_us=0), ConsumeTimeline).credit == 4


def test_no_more_is_asked_for_before_the_broker_knows_the_consumer_again(end: TimelineEnd) -> None:
    end.due("a", "b")
    assert [end.take(), end.take()] == ["a", "b"]
    end.session.disconnected("test")
    end.connect()
    waiter = Waiter()
    end.channel.wait(waiter)
    assert end.take() is None
    opening = end.frames()
    assert [opcode for opcode, *_ in opening if opcode == Opcode.CREDIT] == []

    [sequence] = [
        sequence
        for opcode, _, sequence, body in opening
        if opcode == Opcode.CONTROL and isinstance(decode_command(body), ConsumeTimeline)
    ]
    end.tell(TimelineOpened(now_us=0), sequence=sequence)
    assert waiter.done()
    assert end.take() is None
    assert end.credit() == [(1, 0)]


def test_what_the_application_does_not_get_to_is_given_back_once_and_never_handed_over(
    end: TimelineEnd,
) -> None:
    end.due("a", "b", "c")
    end.commands()

    assert end.take(DUE_MS + 5_001) == "a"

    [(_, returned)] = end.commands()
    assert isinstance(returned, FinishLeases)
    assert (returned.kinds, returned.ids) == (bytes([RETURN] * 2), ["b", "c"])
    assert (returned.versions, returned.times_ms) == ([7, 7], [DUE_MS] * 2)
    assert end.take(DUE_MS + 5_002) is None
    end.reconnect()
    assert not [one for _, one in end.commands() if isinstance(one, FinishLeases)]


def test_what_waits_while_the_application_is_away_is_given_back_at_a_pulse(
    end: TimelineEnd,
) -> None:
    end.due("early", due_ms=DUE_MS + 6_000)
    end.due("a")
    end.commands()

    end.channel.give_back(DUE_MS + 5_000)
    assert end.commands() == []
    end.channel.give_back(DUE_MS + 5_001)

    [(_, returned)] = end.commands()
    assert isinstance(returned, FinishLeases)
    assert returned.ids == ["a"]
    assert end.take(DUE_MS + 6_000) == "early"


def test_a_lease_of_a_former_life_is_not_given_back(end: TimelineEnd) -> None:
    end.due("a", again=True)
    end.commands()
    end.channel.give_back(DUE_MS + 30_001)
    assert end.commands() == []

    # Nor on a later connection: another process may have had it before ours began.
    end.reconnect()
    end.due("a", again=True)
    end.commands()
    end.channel.give_back(DUE_MS + 30_001)
    assert end.commands() == []


def test_who_is_done_is_not_busy_with_it(end: TimelineEnd) -> None:
    end.due("a", "b")
    first, second = end.get(), end.get()
    end.credit()
    # Long after it was full, so that it has not kept up.
    end.now_ms += 2_000
    end.finish(DONE, first)

    assert end.take(DUE_MS + 2_000) is None
    assert end.credit() == []
    end.finish(EXTEND, second, 1)
    assert end.take(DUE_MS + 2_000) is None
    assert end.credit() == []
