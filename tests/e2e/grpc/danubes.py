"""Danube's client as tests need it: everything it opened is closed, and nothing waits for ever."""

import asyncio
import logging
import secrets
from types import TracebackType
from typing import Any, Self

import danube
import grpc

from ister.server.grpc.messages import message

WAIT_S = 15.0
# Its consumers warn thousands of times a second while a broker is away.
logging.getLogger("danube").setLevel(logging.CRITICAL)
# For what must not come: messages that are there come within milliseconds.
QUIET_S = 0.3


def new_topic(text: str = "topic") -> str:
    """Return a name that no other test has."""
    return f"/default/{text}-{secrets.token_hex(6)}"


class Inbox:
    """A consumer with the queue its messages come in."""

    def __init__(self, consumer: Any, queue: "asyncio.Queue[Any]") -> None:
        self.consumer = consumer
        self.queue = queue

    async def take(self, count: int = 1, *, ack: bool = False) -> list[Any]:
        """Return the next messages, acknowledged if wished."""
        found = []
        for _ in range(count):
            got = await asyncio.wait_for(self.queue.get(), WAIT_S)
            found.append(got)
            if ack:
                await self.consumer.ack(got)
        return found

    async def payloads(self, count: int, *, ack: bool = False) -> list[bytes]:
        """Return the payloads of the next messages."""
        return [m.payload for m in await self.take(count, ack=ack)]

    async def is_quiet(self) -> bool:
        """Whether nothing comes."""
        await asyncio.sleep(QUIET_S)
        return self.queue.empty()

    async def close(self) -> None:
        """Close the consumer."""
        await self.consumer.close()


class Danube:
    """One Danube client."""

    def __init__(self, address: str) -> None:
        self.address = address
        self._client: Any = None
        self._opened: list[Any] = []
        self._channels: list[grpc.aio.Channel] = []

    async def __aenter__(self) -> Self:
        builder = danube.DanubeClientBuilder().service_url(f"http://{self.address}")
        self._client = await builder.build()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await asyncio.gather(*(one.close() for one in self._opened))
        connections = self._client.connection_manager._connections.values()
        channels = [*self._channels, *(one.channel for one in connections)]
        await asyncio.gather(*(channel.close() for channel in channels))

    @property
    def schemas(self) -> Any:
        """The schema registry."""
        return self._client.schema()

    async def producer(
        self,
        topic: str,
        name: str = "producer",
        *,
        reliable: bool = False,
        partitions: int = 0,
        subject: str = "",
        version: int = 0,
    ) -> Any:
        """Create a producer."""
        builder = self._client.new_producer().with_topic(topic).with_name(name)
        if reliable:
            builder.with_dispatch_strategy(danube.DispatchStrategy.RELIABLE)
        if partitions:
            builder.with_partitions(partitions)
        if version:
            builder.with_schema_version(subject, version)
        elif subject:
            builder.with_schema_subject(subject)
        made = builder.build()
        await made.create()
        self._opened.append(made)
        return made

    async def consumer(
        self,
        topic: str,
        name: str = "consumer",
        *,
        subscription: str = "subscription",
        type: str = "exclusive",
        filters: tuple[str, ...] = (),
    ) -> Inbox:
        """Subscribe, and begin to receive."""
        builder = (
            self._client.new_consumer()
            .with_topic(topic)
            .with_consumer_name(name)
            .with_subscription(subscription)
            .with_subscription_type(danube.SubType[type.upper()])
            .with_key_filters(list(filters))
        )
        made = builder.build()
        await made.subscribe()
        self._opened.append(made)
        return Inbox(made, await made.receive())

    async def call(self, method: str, request: Any) -> bytes:
        """Make a call with a message, or with bytes as they are; return the answer's bytes."""
        channel = grpc.aio.insecure_channel(self.address)
        self._channels.append(channel)
        data = request if isinstance(request, bytes) else request.SerializeToString()
        answer: bytes = await channel.unary_unary(f"/{method}")(data, timeout=WAIT_S)
        return answer

    async def ask(self, method: str, request: str, answer: str, **fields: Any) -> Any:
        """Make a call with a new message of that name, and return the answer as another."""
        data = await self.call(method, message(request)(**fields))
        return message(answer).FromString(data)

    def stream(self, consumer_id: int) -> Any:
        """Open a stream of a consumer, as bytes."""
        channel = grpc.aio.insecure_channel(self.address)
        self._channels.append(channel)
        request = message("danube.ReceiveRequest")(consumer_id=consumer_id)
        call = channel.unary_stream("/danube.ConsumerService/ReceiveMessages")
        return call(request.SerializeToString(), timeout=WAIT_S)


async def code_of(call: Any) -> grpc.StatusCode:
    """Return the status that something ends with, when it must not end well."""
    failure: BaseException | None = None
    try:
        await call
    except (grpc.aio.AioRpcError, danube.UnrecoverableError) as error:
        # Danube's client wraps one of the codes.
        failure = error.__cause__ or error
    assert isinstance(failure, grpc.aio.AioRpcError), "the call ended well"
    code: grpc.StatusCode = failure.code()
    return code
