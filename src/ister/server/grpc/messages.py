"""Danube's messages and services, made from the committed descriptors in `protos/danube.binpb`.

They live in a descriptor pool of their own: the package `danube-client` registers the same names
in protobuf's common pool, and may be installed, even imported, beside us.
`make protos` makes the file again from the `.proto` files.
"""

from collections.abc import Awaitable, Callable, Mapping
from functools import cache
from pathlib import Path
from typing import Any, cast

from google.protobuf.descriptor_pb2 import FileDescriptorSet
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message import DecodeError, Message
from google.protobuf.message_factory import GetMessageClass

from ister.server.grpc.calls.calls import Call, Direct, Method, Reply
from ister.server.grpc.calls.status import Refusal, StatusCode
from ister.server.grpc.fields import check_fields

FILE = Path(__file__).with_name("protos") / "danube.binpb"

# Takes the request and the call, returns the response; of a streaming method, it writes the
# responses itself.
Handler = Callable[[Any, Any], Awaitable[Any]]

_NONE: Mapping[str, Direct] = {}


def message(name: str) -> type[Any]:
    """Return the class of a message, as `danube.StreamMessage`, or of a nested one."""
    # Whatever protobuf makes at run time has no types to check against.
    return cast("type[Any]", GetMessageClass(_pool().FindMessageTypeByName(name)))


def service(
    name: str, handlers: Mapping[str, Handler], direct: Mapping[str, Direct] = _NONE
) -> dict[str, Method]:
    """Return what answers the methods of service `name`, as `danube.Discovery`, by path.

    A handler is `async (request, call) -> response` and may raise any `IsterError`, which becomes a
    status. Of a method that streams, it gives encoded messages to `call.write`. What it raises
    beside that is our bug: logged, and answered as INTERNAL. Methods without a handler answer
    UNIMPLEMENTED; those in `direct` parse and encode themselves, and answer by a call.
    """
    described = _pool().FindServiceByName(name)
    unknown = (handlers.keys() | direct.keys()) - set(described.methods_by_name)
    assert not unknown, unknown
    made = {}
    for method, handler in handlers.items():
        one = described.methods_by_name[method]
        parse = message(one.input_type.full_name).FromString
        full_name = f"{name}/{method}"
        run = _streaming(parse, handler) if one.server_streaming else _unary(parse, handler)
        made[f"/{full_name}"] = Method(full_name, run=run)
    for method, bare in direct.items():
        full_name = f"{name}/{method}"
        made[f"/{full_name}"] = Method(full_name, direct=_checked(bare))
    return made


def _unary(
    parse: Callable[[bytes], Message], handler: Handler
) -> Callable[[bytes, Call], Awaitable[bytes]]:
    async def run(data: bytes, call: Call) -> bytes:
        response = await handler(_parsed(parse, data), call)
        return cast("bytes", response.SerializeToString())

    return run


def _streaming(
    parse: Callable[[bytes], Message], handler: Handler
) -> Callable[[bytes, Call], Awaitable[None]]:
    async def run(data: bytes, call: Call) -> None:
        await handler(_parsed(parse, data), call)

    return run


def _checked(handler: Direct) -> Direct:
    def run(data: bytes, reply: Reply) -> None:
        try:
            check_fields(data)
            handler(data, reply)
        except DecodeError:
            reply(_NOT_PARSED)

    return run


def _parsed(parse: Callable[[bytes], Message], data: bytes) -> Message:
    check_fields(data)
    try:
        return parse(data)
    except DecodeError:
        raise _NOT_PARSED from None


_NOT_PARSED = Refusal(StatusCode.INVALID_ARGUMENT, "the request cannot be parsed")


@cache
def _pool() -> DescriptorPool:
    pool = DescriptorPool()
    for file in FileDescriptorSet.FromString(FILE.read_bytes()).file:
        pool.Add(file)
    return pool
