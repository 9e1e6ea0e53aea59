"""The same methods on our gRPC server and on that of `grpcio`, which is the reference."""

import asyncio
import json
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import grpc

from ister.base.limits import MIB, Limits
from ister.server.grpc.calls.calls import Call, Method, Reply
from ister.server.grpc.calls.server import GrpcServer
from ister.server.grpc.calls.status import Refusal, StatusCode
from ister.server.security import Authenticator
from ister.telemetry import SystemClock

ECHO, LATER, FAIL, COUNT, WAIT = (
    f"/t.T/{name}" for name in ("Echo", "Later", "Fail", "Count", "Wait")
)
# Far above what our server takes, so that it is the handlers that differ in nothing.
UNLIMITED = [
    ("grpc.max_receive_message_length", -1),
    ("grpc.max_send_message_length", -1),
    ("grpc.use_local_subchannel_pool", 1),
]


def text_of(**values: Any) -> bytes:
    """Return a request of `Fail` or `Count`."""
    return json.dumps(values).encode()


class Seen:
    """What the handlers of one server have seen."""

    def __init__(self) -> None:
        # How many calls of `Wait` are under way, and were cancelled.
        self.waiting = self.cancelled = 0
        # Messages that were written by `Count`.
        self.written = 0
        # Lets the calls of `Wait` end.
        self.go = asyncio.Event()

    async def wait(self) -> bytes:
        """Wait as a handler does."""
        self.waiting += 1
        try:
            await self.go.wait()
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        finally:
            self.waiting -= 1
        return b"waited"


def our_methods(seen: Seen) -> dict[str, Method]:
    """Return the methods as our server has them."""

    def echo(data: bytes, reply: Reply) -> None:
        reply(data)

    async def later(data: bytes, _: Call) -> bytes:
        await asyncio.sleep(0)
        return data

    async def fail(data: bytes, _: Call) -> bytes:
        asked = json.loads(data)
        raise Refusal(StatusCode(asked["code"]), asked["text"])

    async def count(data: bytes, call: Call) -> None:
        asked = json.loads(data)
        for _ in range(asked["count"]):
            await call.drained()
            call.write([bytes(asked["size"])])
            seen.written += 1
        if "code" in asked:
            raise Refusal(StatusCode(asked["code"]), asked["text"])

    async def wait(_: bytes, __: Call) -> bytes:
        return await seen.wait()

    return {
        ECHO: Method("t.T/Echo", direct=echo),
        LATER: Method("t.T/Later", run=later),
        FAIL: Method("t.T/Fail", run=fail),
        COUNT: Method("t.T/Count", run=count),
        WAIT: Method("t.T/Wait", run=wait),
    }


class Reference(grpc.GenericRpcHandler):  # type: ignore[misc]
    """The methods as the server of `grpcio` has them."""

    def __init__(self, seen: Seen) -> None:
        self._seen = seen

    def service(self, details: Any) -> Any:
        """Return the handler of a path."""
        if details.method in (ECHO, LATER):
            return grpc.unary_unary_rpc_method_handler(self._echo)
        if details.method == FAIL:
            return grpc.unary_unary_rpc_method_handler(self._fail)
        if details.method == COUNT:
            return grpc.unary_stream_rpc_method_handler(self._count)
        if details.method == WAIT:
            return grpc.unary_unary_rpc_method_handler(self._wait)
        return None

    async def _echo(self, data: bytes, _: Any) -> bytes:
        return data

    async def _fail(self, data: bytes, context: Any) -> bytes:
        asked = json.loads(data)
        await context.abort(CODES[asked["code"]], asked["text"])
        raise AssertionError

    async def _count(self, data: bytes, context: Any) -> AsyncIterator[bytes]:
        asked = json.loads(data)
        for _ in range(asked["count"]):
            yield bytes(asked["size"])
            self._seen.written += 1
        if "code" in asked:
            await context.abort(CODES[asked["code"]], asked["text"])

    async def _wait(self, _: bytes, __: Any) -> bytes:
        return await self._seen.wait()


CODES: dict[int, grpc.StatusCode] = {code.value[0]: code for code in grpc.StatusCode}


class Served:
    """A server that runs."""

    def __init__(self, address: str, seen: Seen, ours: GrpcServer | None = None) -> None:
        self.address = address
        self.seen = seen
        self._ours = ours

    @property
    def is_ours(self) -> bool:
        """Whether this is our own server."""
        return self._ours is not None

    @property
    def ours(self) -> GrpcServer:
        """Our own server, where it is."""
        assert self._ours is not None
        return self._ours

    def channel(self, *options: tuple[str, Any]) -> grpc.aio.Channel:
        """Return a channel with a connection of its own, which takes messages of any size."""
        return grpc.aio.insecure_channel(self.address, [*options, *UNLIMITED])


@asynccontextmanager
async def serve(
    *, authenticator: Authenticator | None = None, port: int = 0, connections_max: int = 100
) -> AsyncIterator[Served]:
    """Run our server."""
    seen = Seen()
    clock = SystemClock(asyncio.get_running_loop().call_later)
    server = GrpcServer(
        our_methods(seen),
        authenticator=authenticator or Authenticator(),
        limits=Limits(),
        connections_max=connections_max,
        now_ms=clock.monotonic_ms,
    )
    bound = await server.listen("127.0.0.1", port)
    try:
        yield Served(f"127.0.0.1:{bound}", seen, server)
    finally:
        await server.close(0.0)


@asynccontextmanager
async def serve_reference(options: Sequence[tuple[str, Any]] = ()) -> AsyncIterator[Served]:
    """Run the server of `grpcio`."""
    seen = Seen()
    limit = ("grpc.max_receive_message_length", 32 * MIB)
    server = grpc.aio.server(options=[limit, ("grpc.max_send_message_length", -1), *options])
    server.add_generic_rpc_handlers([Reference(seen)])
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    try:
        yield Served(f"127.0.0.1:{port}", seen)
    finally:
        await server.stop(0.0)
