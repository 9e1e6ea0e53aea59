"""Services: a handler answers the requests to a topic, and other clients can see how it does.

Always true:
- at most `concurrency` requests are on the client, all of them with the handler; the others wait in
  the broker, which gives them to the replica with the fewest unanswered ones;
- every request that a handler was given is answered: with what it returned, or with an error;
- each instance answers on the topic `ister-services` of its namespace, as the subscription of its
  own name, to requests whose key is that name. So whoever lists the subscriptions of that topic
  knows all instances that run, and can ask each of them.
"""

import asyncio
import secrets
from collections.abc import Awaitable, Callable, Generator
from contextlib import suppress
from dataclasses import dataclass
from inspect import isawaitable
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

import msgspec

from ister.base import matches, namespace_of
from ister.base.errors import BadRequestError, IsterError, TopicNotFoundError
from ister.client.aio.subscription import Message, Subscription
from ister.client.session import (
    ERROR_ATTRIBUTE,
    as_bytes,
    check_count,
    check_topic,
    cut_reason,
    reason_of,
)
from ister.telemetry import Occasions, library_logger

if TYPE_CHECKING:
    from ister.client.aio.client import Client

logger = library_logger("ister.client")

# Given a request; returns the answer, and `None` for an empty one. A coroutine function or not.
Handler = Callable[[Message], Awaitable[bytes | None] | bytes | None]
# Whether an instance can do its work.
Health = Callable[[], Awaitable[bool] | bool]

CONCURRENCY = 16
CONCURRENCY_MAX = 10_000
# Instances that are asked at once.
ASKED_AT_ONCE = 64
# Where the instances of a namespace answer about themselves.
SUBJECT = "ister-services"


@dataclass(frozen=True, slots=True)
class ServiceStats:
    """What an instance has done since it was made. Latencies are in seconds."""

    requests: int = 0
    failures: int = 0
    in_flight: int = 0
    latency_mean: float = 0.0
    latency_max: float = 0.0


@dataclass(frozen=True, slots=True)
class ServiceReport:
    """One instance of a service that runs."""

    id: str
    topic: str
    name: str
    concurrency: int
    started_ms: int
    healthy: bool
    stats: ServiceStats


class ServiceInstance:
    """Answers requests with what a handler returns. Use it with `async with client.service(...)`.

    >>> async def price(msg):
    ...     return b"42"
    >>> async with client.service("/default/price", price) as service:
    ...     running = asyncio.create_task(service.run())
    ...     print(await client.request("/default/price", b"sku-1"), service.stats.requests)
    b'42' 1
    """

    def __init__(
        self,
        client: "Client",
        topic: str,
        handler: Handler,
        *,
        name: str,
        concurrency: int,
        health: Health | None,
    ) -> None:
        self.topic = check_topic(topic)
        self.name = name
        self.id = f"{name}-{secrets.token_hex(8)}"
        self.concurrency = check_count(concurrency, "concurrency", least=1, most=CONCURRENCY_MAX)
        if not callable(handler):
            raise BadRequestError(f"a handler is a function of a message, not {handler!r}")
        self._client = client
        self._handler = handler
        self._health = health
        self._subject = subject_of(self.topic)
        self._requests: Subscription = client.subscribe(
            self.topic, name, type="shared", buffer_count=self.concurrency
        )
        # A replica that hangs would else have the next requests in its buffer as well.
        self._requests.hold_until_settled()
        self._questions: Subscription = client.subscribe(
            self._subject, self.id, key_filters=[self.id]
        )
        # Throttles the log: a handler may fail on every request.
        self._told = Occasions(client.link.clock.monotonic_ms)
        self._started_ms = 0
        self._answered = self._failures = self._in_flight = 0
        self._latency_us = self._latency_us_max = 0
        # Requests that are dealt with, in place of which the broker is to send others.
        self._settled = 0

    def __await__(self) -> Generator[Any, None, Self]:
        return self.__aenter__().__await__()

    async def __aenter__(self) -> Self:
        await self.open()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close()

    async def open(self) -> None:
        """Subscribe: requests that are sent after this returns wait for `run`."""
        # A topic of requests keeps nothing, whatever topics are made by their use.
        await self._client.create_topic(self._subject, kind="live")
        await self._questions.open()
        await self._requests.open()
        self._started_ms = self._client.link.clock.now_ms()

    async def close(self) -> None:
        """Take no more requests. `run` returns when those under way are answered."""
        await self._requests.close()
        await self._questions.close()

    async def run(self) -> None:
        """Answer requests until the service is closed; cancelled, it ends handlers as well."""
        requests = aiter(self._requests)
        ended: IsterError | None = None
        async with asyncio.TaskGroup() as tasks:
            telling = tasks.create_task(self._tell())
            while True:
                try:
                    msg = await anext(requests, None)
                except IsterError as error:
                    # Not from within: it would be raised as one of a group.
                    ended = error
                    break
                if msg is None:
                    break
                if msg.reply_address is None:
                    self._settle()  # Somebody published here without asking.
                else:
                    tasks.create_task(self._answer(msg)).add_done_callback(self._settle)
            telling.cancel()
        if ended is not None:
            raise ended

    @property
    def stats(self) -> ServiceStats:
        """What this instance has done so far."""
        return ServiceStats(
            requests=self._answered + self._in_flight,
            failures=self._failures,
            in_flight=self._in_flight,
            latency_mean=self._latency_us / 1e6 / max(self._answered, 1),
            latency_max=self._latency_us_max / 1e6,
        )

    async def _answer(self, msg: Message) -> None:
        clock = self._client.link.clock
        begun_us = clock.now_us()
        self._in_flight += 1
        try:
            await msg.reply(await self._handle(msg))
        except Exception as error:  # Whatever it is: the asker waits for an answer.
            self._failures += 1
            if times := self._told.times("service_failed"):
                logger.exception("service_failed", topic=msg.topic, service=self.id, times=times)
            reason = cut_reason(reason_of(error))
            with suppress(IsterError):
                await msg.reply(b"", attributes={ERROR_ATTRIBUTE: reason})
        finally:
            # A clock that was set back has not made it quicker than nothing.
            took_us = max(clock.now_us() - begun_us, 0)
            self._in_flight -= 1
            self._answered += 1
            self._latency_us += took_us
            self._latency_us_max = max(self._latency_us_max, took_us)

    def _settle(self, _: object = None) -> None:
        """Let the broker send another request; those of one turn of the event loop together."""
        self._settled += 1
        if self._settled == 1:
            asyncio.get_running_loop().call_soon(self._flush_settled)

    def _flush_settled(self) -> None:
        settled, self._settled = self._settled, 0
        self._requests.settle(settled)

    async def _handle(self, msg: Message) -> bytes:
        found = self._handler(msg)
        answer = await found if isawaitable(found) else found
        return b"" if answer is None else as_bytes(answer)

    async def _tell(self) -> None:
        """Answer those who ask about this instance."""
        with suppress(IsterError):  # Of a lost broker, `run` hears by the requests.
            async for msg in self._questions:
                if msg.reply_address is not None:
                    await msg.reply(msgspec.json.encode(await self._report()))

    async def _report(self) -> ServiceReport:
        return ServiceReport(
            id=self.id,
            topic=self.topic,
            name=self.name,
            concurrency=self.concurrency,
            started_ms=self._started_ms,
            healthy=await self._is_healthy(),
            stats=self.stats,
        )

    async def _is_healthy(self) -> bool:
        if self._health is None:
            return True
        try:
            found = self._health()
            return bool(await found if isawaitable(found) else found)
        except Exception:  # An instance that cannot say is not well.
            logger.exception("service_health_failed", service=self.id)
            return False


def subject_of(topic: str) -> str:
    """Return where the services of a topic's namespace answer about themselves."""
    return f"/{namespace_of(topic)}/{SUBJECT}"


async def find_services(client: "Client", pattern: str, timeout_s: float) -> list[ServiceReport]:
    """Return the instances that answer to requests of the topics of a pattern."""
    pattern = check_topic(pattern, "a pattern")
    subject = subject_of(pattern)
    try:
        names = [row.subscription for row in await client.subscriptions(subject)]
    except TopicNotFoundError:
        return []  # None was ever started.
    free = asyncio.Semaphore(ASKED_AT_ONCE)

    async def ask(name: str) -> ServiceReport | None:
        async with free:
            try:
                answer = await client.request(subject, b"", key=name, timeout=timeout_s)
                return _decode(answer)
            except (IsterError, msgspec.DecodeError):
                return None  # It has ended meanwhile, hangs, or is no service.

    found = [one for one in await asyncio.gather(*map(ask, names)) if one is not None]
    found = [one for one in found if matches(pattern, one.topic)]
    return sorted(found, key=lambda one: (one.topic, one.id))


_decode = msgspec.json.Decoder(ServiceReport).decode
