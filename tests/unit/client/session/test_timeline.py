"""A consumer of a timeline without I/O: the test plays the broker."""

import pytest
from tests.unit.client.session.timeline_end import CREDIT, DUE_MS, TimelineEnd
from tests.unit.client.session.wire_end import TIMEOUT_MS, Waiter

from ister.base.errors import (
    BadRequestError,
    ClosedError,
    MessageNotFoundError,
    NotConnectedError,
    ProtocolError,
    StorageFailedError,
    TimelineLeaseLostError,
)
from ister.client.session import TimelineChannel
from ister.client.session.timelines import consumer as timeline_module
from ister.wire import (
    DONE,
    EXTEND,
    RELEASE,
    AskTime,
    CloseConsumer,
    ConsumerClosed,
    ConsumeTimeline,
    FinishLeases,
    TimelineChanged,
    TimelineDue,
    TimelineOpened,
    TimeTold,
    error_reply,
    refusal,
)


@pytest.fixture
def end() -> TimelineEnd:
    return TimelineEnd()


def test_a_message_is_handed_over_when_it_is_due_and_not_before(end: TimelineEnd) -> None:
    end.due("a")

    assert end.channel.take(DUE_MS * 1000 - 1) is None
    assert end.channel.next_due_ms == DUE_MS
    assert end.take() == "a"
    assert end.channel.next_due_ms is None


def test_nothing_is_handed_over_while_the_time_is_not_known(end: TimelineEnd) -> None:
    end.due("a", due_ms=0)

    assert end.channel.take(None) is None


def test_the_earliest_goes_first_and_of_those_the_one_that_came_first(end: TimelineEnd) -> None:
    end.due("late", due_ms=30)
    end.due("b", "c", due_ms=20)
    end.due("a", due_ms=10)

    assert [end.take(30) for _ in range(5)] == ["a", "b", "c", "late", None]


def test_of_those_that_are_due_the_lowest_level_goes_first(end: TimelineEnd) -> None:
    end.due("a", "b", "c", levels=[2, 1, 0], due_ms=10)
    end.due("soon", levels=[0], due_ms=99)

    assert [end.take(50) for _ in range(4)] == ["c", "b", "a", None]


def test_lateness_is_counted_for_the_first_attempt_only(end: TimelineEnd) -> None:
    end.due("a")
    end.due("b", attempts=[2])

    assert end.get(DUE_MS + 3).lateness_us == 3_000
    assert end.get(DUE_MS + 3).lateness_us == -1
    assert end.channel.lateness.count == 1


def test_who_waits_is_woken_by_a_delivery(end: TimelineEnd) -> None:
    waiter = Waiter()
    end.channel.wait(waiter)

    end.due("a")

    assert waiter.done()


def test_a_revoked_message_is_never_handed_over(end: TimelineEnd) -> None:
    end.due("a", "b")

    assert end.revoke("a") == [False]
    assert [end.take(), end.take()] == ["b", None]


def test_a_message_that_was_handed_over_is_kept(end: TimelineEnd) -> None:
    end.due("a", "b")
    end.take()

    assert end.revoke("a", "b", "unknown") == [True, False, False]


def test_a_message_of_another_version_is_not_revoked(end: TimelineEnd) -> None:
    end.due("a")

    assert end.revoke("a", version=6) == [False]
    assert end.take() == "a"


def test_what_is_said_in_one_turn_travels_in_one_command(end: TimelineEnd) -> None:
    end.due("a", "b", "c")
    first, second, third = end.get(DUE_MS + 1), end.get(), end.get()
    end.finish(DONE, first)
    end.finish(EXTEND, second, 9_000)
    end.finish(RELEASE, third, 8_000)

    command = end.answer(TimelineChanged(versions=[8, 9, 10]), FinishLeases)

    assert command.kinds == bytes([DONE, EXTEND, RELEASE])
    assert command.ids == ["a", "b", "c"]
    assert command.times_ms == [0, 9_000, 8_000]
    assert command.lateness_us[0] == 1_000
    assert end.outcomes == [8, 9, 10]
    assert second.version == 9


def test_an_error_reaches_who_it_is_for(end: TimelineEnd) -> None:
    end.due("a", "b")
    end.finish(DONE, end.get())
    end.finish(DONE, end.get())

    errors = {1: refusal(TimelineLeaseLostError("b"))}
    end.answer(TimelineChanged(versions=[8, 0], errors=errors), FinishLeases)

    assert end.outcomes[0] == 8
    assert isinstance(end.outcomes[1], TimelineLeaseLostError)


def test_an_answer_that_makes_no_sense_is_an_error_to_all_who_wait(end: TimelineEnd) -> None:
    end.due("a")
    end.finish(DONE, end.get())

    end.answer(TimelineChanged(versions=[]), FinishLeases)

    assert isinstance(end.outcomes[0], ProtocolError)


def test_on_a_lost_connection_what_was_not_handed_over_is_dropped(end: TimelineEnd) -> None:
    end.due("a", "b")
    end.take()
    end.session.disconnected("test")

    assert end.take() is None
    assert end.channel.held_count == 0


def test_a_lease_that_comes_again_is_not_handed_over_twice(end: TimelineEnd) -> None:
    end.due("a")
    held = end.get()
    end.reconnect()

    end.due("a", versions=[9], again=True)

    assert end.take() is None
    assert held.version == 9


def test_a_message_that_was_lost_and_leased_anew_is_handed_over(end: TimelineEnd) -> None:
    end.due("a")
    end.get()
    end.reconnect()

    end.due("a", versions=[9], attempts=[2], again=True)

    assert end.get().attempt == 2


@pytest.mark.parametrize("again", [False, True])
def test_a_new_message_of_an_id_whose_last_one_was_left_to_others_is_handed_over(
    end: TimelineEnd, *, again: bool
) -> None:
    end.due("a")
    end.get()

    end.due("a", due_ms=99_000, versions=[9], again=again)

    assert end.get(99_000).version == 9


# Leases that are over


def test_a_message_whose_lease_is_over_is_not_handed_over(end: TimelineEnd) -> None:
    end.due("a", until_ms=[DUE_MS + 100])
    end.due("b", until_ms=[DUE_MS + 101])

    assert end.take(DUE_MS + 100) == "b"
    assert end.take(DUE_MS + 100) is None
    assert end.channel.held_count == 0


def test_a_message_whose_lease_may_be_over_is_not_handed_over(end: TimelineEnd) -> None:
    # A round of 3 ms, of which nobody knows where the time went.
    end.session.timelines.clock.forget()
    end.session.timelines.clock.add(sent_us=0, told_us=3_000, received_us=3_000)
    end.due("a", "b", until_ms=[DUE_MS + 103, DUE_MS + 104])

    assert end.take(DUE_MS + 100) == "b"


def test_messages_that_are_left_to_others_take_no_memory_for_ever(
    end: TimelineEnd, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(timeline_module, "LIVE_KEPT", 5)
    channel = TimelineChannel(end.session, end.channel.command)
    for slot in range(20):
        due_ms = slot * 1_000
        columns = ([due_ms], [due_ms + 2_000], [1], [b"x"])
        channel.on_due(TimelineDue([f"{slot}"], [7], *columns))
        assert channel.take(due_ms * 1_000) is not None

    assert len(channel._live) <= 10


def test_a_message_that_was_extended_is_not_swept_out(
    end: TimelineEnd, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(end.channel, "_live_max", 1)
    end.due("a", until_ms=[DUE_MS + 100])
    held = end.get()
    end.finish(EXTEND, held, 5_000)
    end.channel.flush()
    end.answer(TimelineChanged(versions=[8], until_ms=[DUE_MS + 5_000]), FinishLeases)
    end.due("b", due_ms=DUE_MS + 4_000)
    assert end.take(DUE_MS + 4_000) == "b"

    end.reconnect()
    end.due("a", versions=[8], again=True)

    assert end.take(DUE_MS + 4_000) is None


# Lateness


def test_leases_of_a_former_life_have_no_lateness(end: TimelineEnd) -> None:
    end.due("a", again=True)
    end.due("b")

    assert (end.get(DUE_MS + 4_000).lateness_us, end.channel.lateness.count) == (-1, 0)
    assert (end.get(DUE_MS + 1).lateness_us, end.channel.lateness.count) == (1_000, 1)


def test_what_was_not_handed_over_before_a_reconnect_has_its_lateness(end: TimelineEnd) -> None:
    end.due("a", "b")
    assert end.take() == "a"
    end.reconnect()

    end.due("a", "b", again=True)

    assert end.get(DUE_MS + 2).id == "b"
    assert end.channel.lateness.count == 2
    assert end.take(DUE_MS + 2) is None


def test_what_was_said_without_a_connection_is_told_on_the_next_one(end: TimelineEnd) -> None:
    end.due("a")
    held = end.get()
    end.session.disconnected("test")
    end.finish(DONE, held)
    end.session.flush()
    assert end.outcomes == []

    end.connect()
    end.answer(TimelineOpened(now_us=0), ConsumeTimeline)
    end.answer(TimelineChanged(versions=[8]), FinishLeases)

    assert end.outcomes == [8]


def test_a_done_whose_answer_was_lost_is_done_when_the_message_is_gone(end: TimelineEnd) -> None:
    end.due("a")
    end.finish(DONE, end.get())
    end.commands()
    end.reconnect()

    gone = TimelineChanged(versions=[0], errors={0: refusal(MessageNotFoundError("a"))})
    end.answer(gone, FinishLeases)

    assert end.outcomes == [7]


def test_a_done_whose_answer_was_lost_is_not_believed_to_be_ours_when_the_lease_is_over(
    end: TimelineEnd,
) -> None:
    end.due("a", until_ms=[DUE_MS + 5])
    end.finish(DONE, end.get())
    end.commands()
    end.reconnect()
    end.now_ms += DUE_MS + 10

    gone = TimelineChanged(versions=[0], errors={0: refusal(MessageNotFoundError("a"))})
    end.answer(gone, FinishLeases)

    assert [type(outcome) for outcome in end.outcomes] == [MessageNotFoundError]


def test_a_done_that_the_broker_got_after_it_had_ended_the_consumer_is_told_why(
    end: TimelineEnd,
) -> None:
    end.due("a")
    end.finish(DONE, end.get())
    [sequence] = [number for number, said in end.commands() if isinstance(said, FinishLeases)]
    end.channel.fail(ClosedError("the consumer"))
    end.tell(error_reply(BadRequestError("no consumer there")), sequence=sequence)

    assert [type(outcome) for outcome in end.outcomes] == [ClosedError]


def test_nobody_waits_for_a_connection_for_ever(end: TimelineEnd) -> None:
    end.due("a")
    held = end.get()
    end.session.disconnected("test")
    end.finish(DONE, held)

    end.now_ms += TIMEOUT_MS - 1
    end.session.pulse()
    assert end.outcomes == []

    end.now_ms += 1
    end.session.pulse()
    assert isinstance(end.outcomes[0], NotConnectedError)


def test_leaving_gives_back_what_was_not_handed_over(end: TimelineEnd) -> None:
    end.due("a", "b", "c")
    end.take()
    end.commands()
    end.session.timelines.close(end.channel, lambda _: None)

    released, close = (command for _, command in end.commands())

    assert isinstance(released, FinishLeases)
    assert (released.kinds, released.ids) == (bytes([RELEASE]), ["a"])
    assert close == CloseConsumer(channel=end.channel.channel, kept=["a"])


def test_leaving_gives_back_what_was_lost_and_is_here_again(end: TimelineEnd) -> None:
    end.due("a")
    end.take()
    end.due("a")
    end.commands()
    end.session.timelines.close(end.channel, lambda _: None)

    [close] = (command for _, command in end.commands())

    assert close == CloseConsumer(channel=end.channel.channel, kept=[])


def test_more_messages_than_can_be_named_are_not_named(
    end: TimelineEnd, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(timeline_module, "KEPT_CHARS_MAX", 3)
    end.due("aa", "bb")
    end.take()
    end.take()
    end.commands()
    end.session.timelines.close(end.channel, lambda _: None)

    *_, close = (command for _, command in end.commands())

    assert close == CloseConsumer(channel=end.channel.channel, kept=None)


def test_a_consumer_that_the_broker_closed_tells_why(end: TimelineEnd) -> None:
    waiter = Waiter()
    end.channel.wait(waiter)
    end.tell(ConsumerClosed(reason="its topic was deleted"), channel=end.channel.channel)

    assert waiter.done()
    with pytest.raises(ClosedError, match="its topic was deleted"):
        end.take()


def test_a_consumer_waits_for_a_storage_that_fails_after_a_reconnect(end: TimelineEnd) -> None:
    failed = error_reply(StorageFailedError("the disk does not answer"))
    end.session.disconnected("test")
    end.connect()
    for _ in range(2):
        end.answer(failed, ConsumeTimeline)
        assert end.commands() == []
        end.session.pulse()
    end.answer(TimelineOpened(now_us=0), ConsumeTimeline)

    end.due("a")
    assert end.take() == "a"


def test_a_consumer_that_is_closed_while_the_storage_fails_is_not_opened_again(
    end: TimelineEnd,
) -> None:
    end.session.disconnected("test")
    end.connect()
    end.answer(error_reply(StorageFailedError("the disk does not answer")), ConsumeTimeline)
    end.session.timelines.close(end.channel, lambda _: None)
    end.commands()

    end.session.pulse()

    assert not [one for _, one in end.commands() if isinstance(one, ConsumeTimeline)]


def test_columns_of_different_lengths_end_the_connection(end: TimelineEnd) -> None:
    with pytest.raises(ProtocolError):
        end.due("a", "b", versions=[1])
    with pytest.raises(ProtocolError):
        end.due("a", "b", attributes=[b""])


def test_a_broker_that_sends_without_end_is_stopped(
    end: TimelineEnd, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ister.client.session.timelines.consumer.BEYOND_CREDIT_MAX", 0)
    end.due(*(f"m-{n}" for n in range(CREDIT)))

    with pytest.raises(ProtocolError, match="credit"):
        end.due("one more")


def test_the_time_is_asked_for_again_when_our_own_clock_was_set(end: TimelineEnd) -> None:
    timelines = end.session.timelines
    assert timelines.find_now_us() is not None
    timelines._asked = False
    end.commands()

    # The clock that is never set goes on, and the other one does not: as if it had been set back.
    end.now_ms += 60_000

    assert timelines.find_now_us() is None
    end.answer(TimeTold(now_us=0), AskTime)
    assert timelines.find_now_us() is not None
