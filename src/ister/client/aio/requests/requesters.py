"""Requests of the asyncio client, and their answers."""

import asyncio
from collections.abc import Callable, Coroutine, Iterable
from contextlib import suppress
from typing import Any

from ister.base.errors import (
    BadRequestError,
    ConnectionLostError,
    IsterError,
    NoResponderError,
    RequestTimeoutError,
    TopicNotFoundError,
)
from ister.client.aio.connection.link import BrokerLink
from ister.client.aio.pool import ProducerPool
from ister.client.session import Answer, check_count, check_timeout, check_topic
from ister.codec import Attributes

# Of a request: whoever answers needs a core as well.
REQUEST_POLL_NS = 150_000

RETRIES_MAX = 100
# A retry of a request that reached nobody waits: a restarted responder is back in less than a
# second. The pause doubles.
RETRY_PAUSE_S = 0.05
# After these, another attempt may get an answer. Everything else is one.
PASSING = (NoResponderError, RequestTimeoutError, ConnectionLostError)

# Sends a request that has so many seconds.
Ask = Callable[[float], Coroutine[Any, Any, Answer]]


class Requesters:
    """Sends requests and returns the first answer to each."""

    def __init__(self, link: Callable[[], BrokerLink], pool: ProducerPool) -> None:
        self._link = link
        self._pool = pool

    # No coroutine: each one between the application and `_ask` costs a request 1 %.
    def request(
        self,
        topic: str,
        payload: bytes,
        *,
        timeout_s: float,
        key: str | None,
        attributes: Attributes | None,
        retries: int = 0,
        hedge_after: float | None = None,
    ) -> Coroutine[Any, Any, Answer]:
        """Send a request; awaited, this returns the first answer: see `Client.request`."""
        topic = check_topic(topic)
        if check_timeout(timeout_s) is None:
            raise BadRequestError(f"a request needs an end: {timeout_s!r} is no timeout in seconds")
        if not retries and hedge_after is None:
            return self._ask(topic, payload, timeout_s, key, attributes)
        check_count(retries, "retries", most=RETRIES_MAX)
        hedge_s = check_timeout(hedge_after, "hedge_after")
        if hedge_after is not None and hedge_after < 0:
            raise BadRequestError(f"hedge_after must not be negative, not {hedge_after!r}")

        def ask(attempt_s: float) -> Coroutine[Any, Any, Answer]:
            return self._ask(topic, payload, attempt_s, key, attributes)

        return self._retry(ask, topic, timeout_s, retries, hedge_s)

    async def _retry(
        self, ask: Ask, topic: str, timeout_s: float, retries: int, hedge_s: float | None
    ) -> Answer:
        """Ask again while there is time. What is left of it is shared by the attempts left."""
        link = self._link()
        end_ms = link.clock.monotonic_ms() + timeout_s * 1000
        pause_s = RETRY_PAUSE_S
        for left in range(retries, -1, -1):
            part_s = max(end_ms - link.clock.monotonic_ms(), 0) / 1000 / (left + 1)
            try:
                return await self._hedge(ask, part_s, hedge_s)
            except PASSING as error:
                if not left:
                    if isinstance(error, RequestTimeoutError):
                        # Not of the last attempt, which had a part of the time.
                        raise RequestTimeoutError(f"request to {topic!r}", timeout_s) from None
                    raise
                nobody = isinstance(error, NoResponderError)
            if nobody:
                with suppress(RequestTimeoutError):
                    never: asyncio.Future[None] = asyncio.get_running_loop().create_future()
                    await link.wait_for(never, min(pause_s, part_s), "a retry")
                pause_s *= 2
        raise AssertionError("the last attempt returns or raises")

    async def _hedge(self, ask: Ask, timeout_s: float, hedge_s: float | None) -> Answer:
        """Ask, and a second time when there is no answer for so long: the first answer counts."""
        if hedge_s is None or hedge_s >= timeout_s:
            return await ask(timeout_s)
        slow: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        timer = self._link().clock.call_later(hedge_s, slow.cancel)
        asking: list[asyncio.Future[Any]] = [asyncio.ensure_future(ask(timeout_s))]
        try:
            await asyncio.wait([*asking, slow], return_when=asyncio.FIRST_COMPLETED)
            if not asking[0].done():
                asking.append(asyncio.ensure_future(ask(timeout_s - hedge_s)))
            return await _first_of(asking)
        finally:
            timer.cancel()
            for task in asking:
                task.cancel()

    async def _ask(
        self,
        topic: str,
        payload: bytes,
        timeout_s: float,
        key: str | None,
        attributes: Attributes | None,
    ) -> Answer:
        link = self._link()
        if not link.session.can_publish:
            await link.wait_open(timeout_s)
        pooled = self._pool.find(topic) or await self._pool.take(topic)
        answer: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        address = link.session.ask(topic, answer, timeout_s)
        try:
            pooled.producer.send_request(payload, key, attributes, address)
            if len(link.session.requests) == 1:
                link.wakefulness.expect(answer.done, at_most_ns=REQUEST_POLL_NS)
            link.expire_requests(timeout_s)
            return await answer
        except IsterError as error:
            if isinstance(error, TopicNotFoundError):
                # The topic was deleted, or not to be had again after a reconnect: the next
                # request opens another producer.
                await self._pool.drop(topic)
            raise
        finally:
            pooled.users -= 1
            link.session.requests.forget(address[1])


async def _first_of(asking: Iterable["asyncio.Future[Answer]"]) -> Answer:
    """Return the first answer, or raise the first error that is one; else the last error."""
    left = set(asking)
    while True:
        done, left = await asyncio.wait(left, return_when=asyncio.FIRST_COMPLETED)
        # All are looked at: an error that nobody has seen is reported.
        errors = [task.exception() for task in done]
        for task, error in zip(done, errors, strict=True):
            if error is None or not left or not isinstance(error, PASSING):
                return await task
