"""Threads are started on demand, and several storages share them."""

import threading
from collections.abc import Callable, Iterator

import pytest

from ister.broker.scheduling.workers import ThreadWorker

WAIT_S = 10.0


class Pool:
    """Workers by name, with the calls they make to the event loop."""

    def __init__(self) -> None:
        self.told: list[object] = []
        self.worker = ThreadWorker("test", 4, self._call_soon)

    def _call_soon(self, call: Callable[[object], object], result: object) -> None:
        call(result)

    @property
    def threads(self) -> int:
        return sum(thread.name.startswith("ister-test-") for thread in threading.enumerate())


@pytest.fixture
def pool() -> Iterator[Pool]:
    made = Pool()
    yield made
    made.worker.close()
    assert made.threads == 0


def test_worker_without_calls_has_no_threads(pool: Pool) -> None:
    assert pool.threads == 0


def test_worker_starts_a_thread_for_each_waiting_call_up_to_its_limit(
    pool: Pool,
) -> None:
    go_on, begun = threading.Event(), threading.Semaphore(0)

    def wait() -> None:
        begun.release()
        go_on.wait(WAIT_S)

    counts = []
    for _ in range(6):
        pool.worker.run(wait, pool.told.append)
        counts.append(pool.threads)
    for _ in range(4):
        assert begun.acquire(timeout=WAIT_S)
    go_on.set()
    pool.worker.close()

    assert counts == [1, 2, 3, 4, 4, 4]
    assert pool.told == [None] * 6


def test_closing_a_share_waits_only_for_its_own_calls(pool: Pool) -> None:
    mine, others = pool.worker.share(), pool.worker.share()
    go_on, other = threading.Event(), threading.Event()
    others.run(lambda: other.wait(WAIT_S), pool.told.append)
    mine.run(lambda: go_on.wait(WAIT_S), pool.told.append)
    closing = threading.Thread(target=mine.close)
    closing.start()
    assert closing.is_alive()
    go_on.set()
    closing.join(WAIT_S)

    assert not closing.is_alive()
    other.set()
    others.close()
    others.run(lambda: 7, pool.told.append)
    pool.worker.close()
    assert pool.told.count(True) == 2
    assert pool.told[-1] == 7


def test_share_passes_on_errors(pool: Pool) -> None:
    share = pool.worker.share()
    error = OSError("gone")

    def fail() -> None:
        raise error

    share.run(fail, pool.told.append)
    share.close()
    pool.worker.close()
    assert pool.told == [error]
