"""Staying awake: when the loop polls and when it may sleep."""

import asyncio

from ister.client.aio.wakefulness import MISSES_MAX, REST_SENDS
from ister.client.aio.wakefulness import Wakefulness as ClientWakefulness
from ister.server.native.wakefulness import SMALL_BYTES, Wakefulness


class Answer:
    """Something to wait for."""

    def __init__(self, *, done: bool) -> None:
        self._done = done

    def done(self) -> bool:
        return self._done


async def pass_window() -> None:
    """Let a window of no time pass."""
    for _ in range(3):
        await asyncio.sleep(0)


async def test_one_small_frame_alone_keeps_nobody_awake() -> None:
    wakefulness = Wakefulness(window_us=10_000)
    wakefulness.on_received(10)

    assert not wakefulness.awake


async def test_small_frames_in_a_row_keep_the_broker_awake_for_a_while() -> None:
    wakefulness = Wakefulness(window_us=0.001)
    wakefulness.on_received(SMALL_BYTES)
    wakefulness.on_received(SMALL_BYTES)
    awake_at_first = wakefulness.awake

    await pass_window()

    assert (awake_at_first, wakefulness.awake) == (True, False)


async def test_bulk_keeps_nobody_awake() -> None:
    wakefulness = Wakefulness(window_us=10_000)
    for _ in range(3):
        wakefulness.on_received(SMALL_BYTES + 1)

    assert not wakefulness.awake


async def test_a_window_of_zero_turns_it_off() -> None:
    broker, client = Wakefulness(window_us=0), ClientWakefulness(window_s=0.0)
    broker.on_received(1)
    broker.on_received(1)
    client.wait(Answer(done=False))

    assert not broker.awake
    assert not client.awake


async def test_a_client_sleeps_again_once_its_answer_is_there() -> None:
    wakefulness = ClientWakefulness(window_s=60.0)
    wakefulness.wait(Answer(done=True))
    awake_at_first = wakefulness.awake

    await pass_window()

    assert (awake_at_first, wakefulness.awake) == (True, False)


async def test_a_client_gives_up_polling_when_answers_keep_taking_longer() -> None:
    wakefulness = ClientWakefulness(window_s=1e-9)
    for _ in range(MISSES_MAX):
        wakefulness.wait(Answer(done=False))
        await pass_window()

    for _ in range(REST_SENDS):
        wakefulness.wait(Answer(done=False))
        assert not wakefulness.awake
    wakefulness.wait(Answer(done=False))

    assert wakefulness.awake
