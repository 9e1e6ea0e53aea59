"""What a consumer of a timeline says again after a lost connection; the test plays the broker."""

import pytest
from tests.unit.client.session.timeline_end import DUE_MS, TimelineEnd
from tests.unit.client.session.wire_end import TIMEOUT_MS

from ister.base.errors import (
    IsterError,
    MessageNotFoundError,
    NotConnectedError,
    TimelineLeaseLostError,
)
from ister.wire import (
    DONE,
    EXTEND,
    RELEASE,
    ConsumeTimeline,
    FinishLeases,
    TimelineChanged,
    TimelineOpened,
    refusal,
)

LOST = TimelineChanged(versions=[0], errors={0: refusal(TimelineLeaseLostError("a"))})
GONE = TimelineChanged(versions=[0], errors={0: refusal(MessageNotFoundError("a"))})


@pytest.fixture
def end() -> TimelineEnd:
    return TimelineEnd()


@pytest.mark.parametrize("is_told", [True, False])
def test_however_often_a_lease_was_extended_it_ends_when_the_broker_says(
    end: TimelineEnd, *, is_told: bool
) -> None:
    end.due("a", due_ms=0, until_ms=[1_000])
    held = end.get(0)
    for _ in range(10):
        end.finish(EXTEND, held, 1_000)
        until_ms = [1_000] if is_told else []
        end.answer(TimelineChanged(versions=[8], until_ms=until_ms), FinishLeases)
    end.finish(DONE, held)
    end.commands()
    end.reconnect(now_us=1_000_000)

    end.answer(GONE, FinishLeases)

    assert [type(outcome) for outcome in end.outcomes[10:]] == [MessageNotFoundError]


def test_a_done_is_not_believed_to_be_ours_when_a_lost_extension_may_have_ended_the_lease(
    end: TimelineEnd,
) -> None:
    end.due("a", due_ms=0, until_ms=[60_000])
    held = end.get(0)
    end.finish(EXTEND, held, 1_000)
    end.commands()
    end.session.disconnected("test")
    end.now_ms += TIMEOUT_MS
    end.session.pulse()
    end.now_ms -= TIMEOUT_MS
    end.connect()
    end.answer(TimelineOpened(now_us=0), ConsumeTimeline)
    end.finish(DONE, held)
    end.commands()
    end.reconnect(now_us=1_000_000)

    end.answer(GONE, FinishLeases)

    outcomes = [type(outcome) for outcome in end.outcomes]
    assert outcomes == [NotConnectedError, MessageNotFoundError]


def test_a_done_whose_answer_was_lost_is_not_believed_to_be_ours_when_the_time_is_not_known(
    end: TimelineEnd,
) -> None:
    end.due("a", until_ms=[DUE_MS + 60_000])
    end.finish(DONE, end.get())
    end.commands()
    end.reconnect()
    end.session.timelines.clock.forget()

    end.answer(GONE, FinishLeases)

    assert [type(outcome) for outcome in end.outcomes] == [MessageNotFoundError]


def test_an_extension_whose_answer_was_lost_is_made_again_when_the_lease_came_again(
    end: TimelineEnd,
) -> None:
    end.due("a")
    held = end.get()
    end.finish(EXTEND, held, 9_000)
    end.commands()
    end.reconnect()
    end.due("a", versions=[8], again=True)
    assert end.answer(LOST, FinishLeases).versions == [7]

    command = end.answer(TimelineChanged(versions=[9], until_ms=[20_000]), FinishLeases)

    assert (command.versions, command.times_ms) == ([8], [9_000])
    assert (end.outcomes, held.version, held.until_ms) == ([9], 9, 20_000)


def test_an_extension_is_lost_when_the_lease_did_not_come_again(end: TimelineEnd) -> None:
    end.due("a")
    end.finish(EXTEND, end.get(), 9_000)
    end.commands()
    end.reconnect()

    end.answer(LOST, FinishLeases)

    assert [type(outcome) for outcome in end.outcomes] == [TimelineLeaseLostError]


@pytest.mark.parametrize("kind", [DONE, RELEASE])
@pytest.mark.parametrize("answer", [LOST, GONE], ids=["lost", "gone"])
@pytest.mark.parametrize("now_ms", [59_999, 60_000])
def test_what_was_said_and_not_answered_was_carried_out_if_nobody_else_can_have_the_message(
    end: TimelineEnd, kind: int, answer: TimelineChanged, now_ms: int
) -> None:
    end.due("a", due_ms=0)
    end.finish(kind, end.get(0))
    end.commands()
    end.reconnect(now_us=now_ms * 1_000)

    end.answer(answer, FinishLeases)

    assert isinstance(end.outcomes[0], IsterError) == (now_ms == 60_000)


@pytest.mark.parametrize("kind", [DONE, RELEASE])
def test_what_was_said_once_is_lost_when_the_broker_says_so(end: TimelineEnd, kind: int) -> None:
    end.due("a")
    end.finish(kind, end.get())

    end.answer(LOST, FinishLeases)

    assert [type(outcome) for outcome in end.outcomes] == [TimelineLeaseLostError]
