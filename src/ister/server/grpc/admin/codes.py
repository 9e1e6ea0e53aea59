"""How methods of Danube's admin API are called, and where they answer with other status codes."""

from typing import Any

from ister.base.errors import IsterError
from ister.server import operations
from ister.server.grpc.calls.status import Refusal, StatusCode
from ister.server.grpc.messages import Handler
from ister.server.operations import INSIDE, Caller

# What an error is answered with, the first class that it is of.
Codes = tuple[tuple[type[IsterError], StatusCode], ...]


def coded(handler: Handler, codes: Codes) -> Handler:
    """Return `handler`, answering as `codes` say what it raises; the rest as everywhere."""

    async def call(request: Any, context: Any) -> Any:
        try:
            return await handler(request, context)
        except IsterError as error:
            for kind, code in codes:
                if isinstance(error, kind):
                    raise Refusal(code, f"[{error.code}] {error}") from error
            raise

    return call


def caller_of(call: Any) -> Caller:
    """Return who has made a call."""
    return INSIDE if call is None else Caller("grpc", call.shown.name, call.peer())


def whole(handler: Handler) -> Handler:
    """Return `handler`, which ends what it has begun also when the client goes away meanwhile."""

    async def call(request: Any, context: Any) -> Any:
        return await operations.whole(handler(request, context))

    return call


def refusing(code: StatusCode, text: str) -> Handler:
    """Return what answers every call with one status."""

    async def call(_request: Any, _: object) -> None:
        raise Refusal(code, text)

    return call
