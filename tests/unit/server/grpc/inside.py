"""The door's own parts over a real broker in memory, without gRPC and with a clock to move."""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ister.base.limits import Limits
from ister.broker import Broker
from ister.metadata import MemoryMetadata
from ister.objects import MemoryDisk
from ister.registry import Registry
from ister.server.grpc.admin.settings import SubscriptionSettings
from ister.server.grpc.calls.calls import Direct
from ister.server.grpc.consumers import Consumers
from ister.server.grpc.messages import message
from ister.server.grpc.producers import Producers
from ister.server.grpc.roll import Roll, id_of
from ister.server.grpc.schemas import SchemaRefs
from ister.server.grpc.translation import StreamMessage
from ister.testing import VirtualClock
from ister.testing.engine import Engine

TOPIC = "/default/orders"
WAIT_S = 5.0


@dataclass
class FakeContext:
    """A call: keeps what is written, and may be told to have no room for more."""

    written: "asyncio.Queue[Any]" = field(default_factory=asyncio.Queue)
    reads: asyncio.Event = field(default_factory=asyncio.Event)

    def __post_init__(self) -> None:
        self.reads.set()
        self._full = False

    def peer(self) -> str:
        return "memory"

    async def drained(self) -> None:
        if self._full:
            await self.reads.wait()

    def write(self, messages: Sequence[bytes]) -> None:
        for data in messages:
            self.written.put_nowait(StreamMessage.FromString(data))
        self._full = not self.reads.is_set()

    async def take(self, count: int = 1) -> list[bytes]:
        """Return the payloads of the next messages."""
        async with asyncio.timeout(WAIT_S):
            return [(await self.written.get()).payload for _ in range(count)]


async def answer_of(direct: Direct, data: bytes, after: Callable[[], None] = lambda: None) -> bytes:
    """Return what a handler answers, now or later, or raise why it does not."""
    answered: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()

    def reply(answer: bytes | BaseException) -> None:
        if isinstance(answer, bytes):
            answered.set_result(answer)
        else:
            answered.set_exception(answer)

    direct(data, reply)
    after()
    return await answered


class Inside:
    """Everything behind the client port."""

    def __init__(self, broker: Broker, clock: VirtualClock, registry: Registry) -> None:
        self.broker = broker
        self.clock = clock
        metadata = MemoryMetadata()
        self.roll = Roll(metadata, clock.now_ms)
        self.producers = Producers(broker, self.roll, SchemaRefs(registry), waiting_bytes_max=1_000)
        self.consumers = Consumers(broker, self.roll, SubscriptionSettings(metadata).acks)
        self._tasks: list[asyncio.Task[None]] = []

    @classmethod
    async def open(cls) -> "Inside":
        """Start a broker."""
        clock = VirtualClock()
        registry = await Registry.open(MemoryMetadata(), now_ms=clock.now_ms)
        engine = Engine(
            name="b", limits=Limits(), clock=clock, seed=1, disk=MemoryDisk(), registry=registry
        )
        return cls(engine.broker, clock, registry)

    async def produce(self, *, reliable: bool = False, name: str = "p", topic: str = TOPIC) -> int:
        """Create a producer and return its id."""
        request = message("danube.ProducerRequest")(
            topic_name=topic, producer_name=name, dispatch_strategy=int(reliable)
        )
        made: int = (await self.producers.create(request, None)).producer_id
        return made

    async def send(
        self,
        payload: bytes,
        *,
        name: str = "p",
        topic: str = TOPIC,
        producer_id: int = 0,
        attributes: Mapping[str, str] | None = None,
    ) -> None:
        """Send a message."""
        sent = StreamMessage(
            msg_id={"producer_id": producer_id or id_of(topic, name), "topic_name": topic},
            producer_name=name,
            payload=payload,
            attributes=attributes or {},
        )
        await self.send_bytes(sent.SerializeToString())

    async def send_bytes(self, data: bytes) -> bytes:
        """Send a message as it is on the wire."""
        return await answer_of(self.producers.send, data, self.producers.publish_runs)

    async def subscribe(
        self, name: str = "c", *, type: int = 0, key_filters: Sequence[str] = ()
    ) -> int:
        """Subscribe a consumer and return its id."""
        request = message("danube.ConsumerRequest")(
            topic_name=TOPIC,
            consumer_name=name,
            subscription="s",
            subscription_type=type,
            key_filters=key_filters,
        )
        made: int = (await self.consumers.subscribe(request, FakeContext())).consumer_id
        return made

    def receive(self, consumer_id: int, context: FakeContext) -> "asyncio.Task[None]":
        """Open a stream."""
        request = message("danube.ReceiveRequest")(consumer_id=consumer_id)
        task = asyncio.create_task(self.consumers.receive(request, context))
        self._tasks.append(task)
        return task

    async def ack(self, offset: int) -> None:
        """Acknowledge a message."""
        request = message("danube.AckRequest")(
            msg_id={"topic_name": TOPIC, "topic_offset": offset}, subscription_name="s"
        )
        await answer_of(self.consumers.ack, request.SerializeToString())

    async def close(self) -> None:
        """End every stream."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)


async def turns(count: int = 20) -> None:
    """Let everything happen that is about to."""
    for _ in range(count):
        await asyncio.sleep(0)
