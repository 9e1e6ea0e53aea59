"""Producers that a client keeps open behind `publish` and `request`, one for each topic.

Always true:
- one that is in use stays open;
- beyond `POOLED_PRODUCERS_MAX` of them, the longest unused makes room.
"""

from collections.abc import Awaitable, Callable
from contextlib import suppress

from ister.base.errors import TopicNotFoundError
from ister.client.aio.producer import Producer
from ister.client.session import MessageId

# A producer takes a channel of the connection and about 10 KiB: 2.5 MiB for all of them.
POOLED_PRODUCERS_MAX = 256


class PooledProducer:
    """A producer, and how many callers use it at this moment."""

    __slots__ = ("producer", "users")

    def __init__(self, producer: Producer) -> None:
        self.producer = producer
        self.users = 0


class ProducerPool:
    """The producers that a client keeps open behind `publish` and `request`."""

    def __init__(self, make_producer: Callable[[str], Producer]) -> None:
        self._make_producer = make_producer
        # The longest unused first.
        self._pooled: dict[str, PooledProducer] = {}

    def __len__(self) -> int:
        return len(self._pooled)

    def find(self, topic: str) -> PooledProducer | None:
        """Return what `take` returns, if there is nothing to open or to close for that."""
        pooled = self._pooled.get(topic)
        if pooled is None or pooled.producer.closed or len(self._pooled) > POOLED_PRODUCERS_MAX:
            return None
        del self._pooled[topic]
        self._pooled[topic] = pooled
        pooled.users += 1
        return pooled

    async def take(self, topic: str) -> PooledProducer:
        """Return the producer of a topic, open; the caller takes one from `users` when done."""
        pooled = self._pooled.pop(topic, None)
        if pooled is not None and pooled.producer.closed:
            await pooled.producer.close(flush=False)
            pooled = None
        if pooled is None:
            pooled = await self._open(topic)
        self._pooled[topic] = pooled
        pooled.users += 1
        if len(self._pooled) > POOLED_PRODUCERS_MAX:
            await self._make_room()
        return pooled

    async def send(self, topic: str, send: Callable[[Producer], Awaitable[MessageId]]) -> MessageId:
        """Return what `send` returns for the producer of a topic."""
        with suppress(TopicNotFoundError):
            return await self._send(topic, send)
        # It was deleted since the producer was opened, and there may be another one of its name.
        return await self._send(topic, send)

    async def _send(
        self, topic: str, send: Callable[[Producer], Awaitable[MessageId]]
    ) -> MessageId:
        pooled = await self.take(topic)
        try:
            return await send(pooled.producer)
        except TopicNotFoundError:
            await self.drop(topic)
            raise
        finally:
            pooled.users -= 1

    async def drop(self, topic: str) -> None:
        """Close the producer of a topic; the next `take` opens another one."""
        pooled = self._pooled.pop(topic, None)
        if pooled is not None:
            await pooled.producer.close(flush=False)

    async def _open(self, topic: str) -> PooledProducer:
        producer = self._make_producer(topic)
        await producer.open()
        # Another caller may have opened one meanwhile.
        found = self._pooled.pop(topic, None)
        if found is None or found.producer.closed:
            return PooledProducer(producer)
        await producer.close(flush=False)
        return found

    async def _make_room(self) -> None:
        """Close the longest unused; when all are in use, the next caller comes back to that."""
        idle = next((topic for topic, one in self._pooled.items() if not one.users), None)
        if idle is not None:
            await self.drop(idle)
