"""The throttles of the log."""

from ister.telemetry import Occasional, Occasions
from ister.telemetry.occasions import TELL_MS
from ister.testing import VirtualClock


def test_event_is_logged_once_a_second_with_a_count() -> None:
    clock = VirtualClock()
    told = Occasional(clock.monotonic_ms)

    assert [told.times() for _ in range(3)] == [1, 0, 0]
    clock.advance((TELL_MS - 1) / 1_000)
    assert told.times() == 0
    clock.advance(0.001)
    assert told.times() == 4


def test_each_event_is_throttled_by_itself() -> None:
    clock = VirtualClock()
    told = Occasions(clock.monotonic_ms)

    lines = [(event, times) for _ in range(1_000) for event in "ab" if (times := told.times(event))]
    assert lines == [("a", 1), ("b", 1)]

    clock.advance(TELL_MS / 1_000)
    assert (told.times("a"), told.times("a"), told.times("b")) == (1_000, 0, 1_000)
