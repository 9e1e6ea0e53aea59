"""Bodies of requests: their size, their time, and what all of them take together."""

import asyncio
from typing import Any

import pytest

from ister.base.errors import LimitReachedError
from ister.server.http import bodies as bodies_module
from ister.server.http.bodies import BODIES_BYTES_MAX, BODY_BYTES_MAX, Bodies
from ister.server.http.faults import RefusedError

CHUNK = bytes(64 * 1024)


class Peer:
    """Sends a body in chunks; waits for ever before the last one when it is stuck."""

    def __init__(self, size_bytes: int, *, stuck: bool = False) -> None:
        self.left = size_bytes
        self.stuck = stuck
        self.waiting = asyncio.Event()

    async def receive(self) -> dict[str, Any]:
        part = CHUNK[: self.left]
        if self.left == len(part) and self.stuck:
            self.waiting.set()
            await asyncio.Event().wait()
        self.left -= len(part)
        return {"type": "http.request", "body": part, "more_body": self.left > 0}


def scope(size_bytes: int | None = None) -> dict[str, Any]:
    stated = [] if size_bytes is None else [(b"content-length", b"%d" % size_bytes)]
    return {"headers": stated}


@pytest.mark.parametrize("size_bytes", [0, 1, BODY_BYTES_MAX])
async def test_a_body_within_the_limit_is_read_whole(size_bytes: int) -> None:
    bodies = Bodies()

    assert await bodies.read(scope(size_bytes), Peer(size_bytes).receive) == bytes(size_bytes)
    assert bodies.held_bytes == 0


async def test_a_body_over_the_limit_is_refused_before_it_is_read() -> None:
    peer = Peer(BODY_BYTES_MAX + 1)

    with pytest.raises(RefusedError) as caught:
        await Bodies().read(scope(BODY_BYTES_MAX + 1), peer.receive)

    assert caught.value.status == 413
    assert peer.left == BODY_BYTES_MAX + 1


async def test_a_body_of_unstated_size_is_read_up_to_the_limit() -> None:
    bodies, peer = Bodies(), Peer(BODY_BYTES_MAX * 10)

    with pytest.raises(RefusedError) as caught:
        await bodies.read(scope(), peer.receive)

    assert caught.value.status == 413
    assert peer.left >= BODY_BYTES_MAX * 9 - len(CHUNK)
    assert bodies.held_bytes == 0


async def test_a_stated_size_that_is_absurd_is_refused() -> None:
    with pytest.raises(RefusedError):
        await Bodies().read({"headers": [(b"content-length", b"9" * 5_000)]}, Peer(0).receive)


async def test_a_body_that_does_not_come_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bodies_module, "BODY_S", 0.01)
    bodies = Bodies()

    with pytest.raises(RefusedError) as caught:
        await bodies.read(scope(), Peer(100_000, stuck=True).receive)

    assert caught.value.status == 408
    assert (b"connection", b"close") in caught.value.headers
    assert bodies.held_bytes == 0


async def test_all_bodies_together_are_bounded() -> None:
    bodies = Bodies()
    peers = [Peer(BODY_BYTES_MAX, stuck=True) for _ in range(BODIES_BYTES_MAX // BODY_BYTES_MAX)]
    tasks = [asyncio.ensure_future(bodies.read(scope(), peer.receive)) for peer in peers]
    for peer in peers:
        await peer.waiting.wait()

    with pytest.raises(LimitReachedError):
        await bodies.read(scope(), Peer(BODY_BYTES_MAX).receive)

    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    assert bodies.held_bytes == 0
