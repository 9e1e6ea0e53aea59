"""Danube's messages and services, made from the committed descriptors in `protos/danube.binpb`.

They live in a descriptor pool of their own: the package `danube-client` registers the same names
in protobuf's common pool, and may be installed, even imported, beside us.
`make protos` makes the file again from the `.proto` files.
"""

from collections.abc import Awaitable, Callable, Mapping
from functools import cache
from pathlib import Path
from typing import Any, Protocol, cast

import grpc
import structlog
from google.protobuf.descriptor_pb2 import FileDescriptorSet
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message import DecodeError, Message
from google.protobuf.message_factory import GetMessageClass

from ister.base.errors import IsterError
from ister.server.grpc.status import Refusal, code_of

logger = structlog.get_logger("grpc")

# A text travels in a header, at worst with nine bytes for a character. A client takes 8 KiB of
# headers; of more, it makes RESOURCE_EXHAUSTED, which Danube's clients repeat for ever.
DETAILS_MAX = 800

FILE = Path(__file__).with_name("protos") / "danube.binpb"


class Context(Protocol):
    """What a handler needs of grpcio's context of a call."""

    async def abort(self, code: grpc.StatusCode, details: str = "") -> None:
        """End the call with a status; raises."""


# Takes the request, returns the response; of a streaming method, it writes the responses itself.
Handler = Callable[[Any, Any], Awaitable[Any]]
# Takes and returns what is on the wire: for the one method that is called for every message.
RawHandler = Callable[[bytes], Awaitable[bytes]]

_NONE: Mapping[str, RawHandler] = {}


def message(name: str) -> type[Any]:
    """Return the class of a message, as `danube.StreamMessage`, or of a nested one."""
    # Whatever protobuf makes at run time has no types to check against.
    return cast("type[Any]", GetMessageClass(_pool().FindMessageTypeByName(name)))


def service(
    name: str, handlers: Mapping[str, Handler], raw: Mapping[str, RawHandler] = _NONE
) -> grpc.GenericRpcHandler:
    """Return what answers the methods of service `name`, as `danube.Discovery`.

    A handler is `async (request, context) -> response` and may raise any `IsterError`, which
    becomes a status. Of a method that streams, it gives encoded messages to `context.write`.
    What it raises beside that is our bug: logged, and answered as INTERNAL.
    Methods without a handler answer UNIMPLEMENTED; those in `raw` parse and encode themselves.
    """
    described = _pool().FindServiceByName(name)
    unknown = (handlers.keys() | raw.keys()) - set(described.methods_by_name)
    assert not unknown, unknown
    made = {}
    for method, handler in handlers.items():
        one = described.methods_by_name[method]
        parse = message(one.input_type.full_name).FromString
        if one.server_streaming:
            made[method] = grpc.unary_stream_rpc_method_handler(
                _streaming(parse, handler, f"{name}/{method}")
            )
        else:
            made[method] = grpc.unary_unary_rpc_method_handler(
                _unary(parse, handler, f"{name}/{method}")
            )
    for method, bare in raw.items():
        made[method] = grpc.unary_unary_rpc_method_handler(_raw(bare, f"{name}/{method}"))
    return cast("grpc.GenericRpcHandler", grpc.method_handlers_generic_handler(name, made))


def _unary(
    parse: Callable[[bytes], Message], handler: Handler, method: str
) -> Callable[[bytes, Context], Awaitable[bytes]]:
    async def call(data: bytes, context: Context) -> bytes:
        try:
            response = await handler(parse(data), context)
            return cast("bytes", response.SerializeToString())
        except Exception as error:
            # Raises: a bug must cost one call, not the broker.
            await _fail(context, error, method)
            raise

    return call


def _raw(handler: RawHandler, method: str) -> Callable[[bytes, Context], Awaitable[bytes]]:
    async def call(data: bytes, context: Context) -> bytes:
        try:
            return await handler(data)
        except Exception as error:
            # Raises: a bug must cost one call, not the broker.
            await _fail(context, error, method)
            raise

    return call


def _streaming(
    parse: Callable[[bytes], Message], handler: Handler, method: str
) -> Callable[[bytes, Context], Awaitable[None]]:
    async def call(data: bytes, context: Context) -> None:
        try:
            await handler(parse(data), context)
        except Exception as error:  # noqa: BLE001 - a bug must cost one call, not the broker
            await _fail(context, error, method)

    return call


async def _fail(context: Context, error: Exception, method: str) -> None:
    """End a call with the status that `error` stands for."""
    if isinstance(error, IsterError):
        await context.abort(code_of(error), f"[{error.code}] {error}"[:DETAILS_MAX])
    elif isinstance(error, Refusal):
        await context.abort(error.code, error.text[:DETAILS_MAX])
    elif isinstance(error, DecodeError):
        await context.abort(grpc.StatusCode.INVALID_ARGUMENT, "the request cannot be parsed")
    elif not isinstance(error, grpc.aio.AbortError):
        logger.error("internal_error", method=method, exc_info=error)
        await context.abort(grpc.StatusCode.INTERNAL, "a bug in the broker; its log says more")


@cache
def _pool() -> DescriptorPool:
    pool = DescriptorPool()
    for file in FileDescriptorSet.FromString(FILE.read_bytes()).file:
        pool.Add(file)
    return pool
