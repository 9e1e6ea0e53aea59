"""Staying awake: when a loop polls, when it sleeps, when polling is given up."""

from collections.abc import Callable

from ister.wire import Wakefulness
from ister.wire.wakefulness import MISSES_MAX, REST_COUNT

WINDOW_US = 100


class Loop:
    """An event loop and a clock, both moved by hand."""

    def __init__(self) -> None:
        self.now_ns = 0
        self.calls: list[Callable[[], object]] = []

    def call_soon(self, call: Callable[[], object]) -> None:
        """Run `call` in the next turn."""
        self.calls.append(call)

    def turn(self, *, after_us: int = 1) -> None:
        """Let time pass, then run what was scheduled."""
        self.now_ns += after_us * 1_000
        calls, self.calls = self.calls, []
        for call in calls:
            call()


def woken(window_us: float = WINDOW_US) -> tuple[Loop, Wakefulness]:
    loop = Loop()
    return loop, Wakefulness(window_us, call_soon=loop.call_soon, now_ns=lambda: loop.now_ns)


def miss(loop: Loop, wakefulness: Wakefulness) -> None:
    wakefulness.expect(lambda: False)
    loop.turn(after_us=WINDOW_US)


def test_a_loop_polls_until_what_it_expects_has_come() -> None:
    loop, wakefulness = woken()
    came = False
    wakefulness.expect(lambda: came)
    loop.turn()
    awake_before = wakefulness.awake

    came = True
    loop.turn()

    assert (awake_before, wakefulness.awake, loop.calls) == (True, False, [])


def test_a_loop_sleeps_when_the_window_is_over() -> None:
    loop, wakefulness = woken()
    wakefulness.expect(lambda: False)
    loop.turn(after_us=WINDOW_US - 1)
    awake_before = wakefulness.awake

    loop.turn(after_us=1)

    assert (awake_before, wakefulness.awake, loop.calls) == (True, False, [])


def test_expecting_more_extends_the_window_and_polls_once() -> None:
    loop, wakefulness = woken()
    wakefulness.expect(lambda: False)
    loop.turn(after_us=WINDOW_US - 1)
    wakefulness.expect(lambda: False)
    scheduled = len(loop.calls)
    loop.turn(after_us=WINDOW_US - 1)

    assert (scheduled, wakefulness.awake) == (1, True)


def test_the_window_begins_again_after_a_wait_of_ones_own() -> None:
    loop, wakefulness = woken()
    wakefulness.expect(lambda: False)
    loop.now_ns += 5 * WINDOW_US * 1_000
    wakefulness.renew()
    loop.turn(after_us=WINDOW_US // 2)
    awake_within = wakefulness.awake
    loop.turn(after_us=WINDOW_US)
    awake_after = wakefulness.awake
    wakefulness.renew()

    assert (awake_within, awake_after, wakefulness.awake, loop.calls) == (True, False, False, [])


def test_no_window_means_no_polling() -> None:
    loop, wakefulness = woken(0)
    wakefulness.expect(lambda: False)

    assert (wakefulness.awake, loop.calls) == (False, [])


def test_polling_is_given_up_for_a_while_when_it_keeps_being_in_vain() -> None:
    loop, wakefulness = woken()
    for _ in range(MISSES_MAX):
        miss(loop, wakefulness)
    for _ in range(REST_COUNT):
        wakefulness.expect(lambda: False)
    rested = wakefulness.awake

    wakefulness.expect(lambda: False)

    assert (rested, wakefulness.awake) == (False, True)


def test_one_success_forgives_earlier_misses() -> None:
    loop, wakefulness = woken()
    for _ in range(MISSES_MAX - 1):
        miss(loop, wakefulness)
    wakefulness.expect(lambda: True)
    loop.turn()
    miss(loop, wakefulness)

    wakefulness.expect(lambda: False)

    assert wakefulness.awake
