"""TLS and tokens at the gRPC doors: every call has to bring one, whatever its method is."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import grpc

from ister.base.errors import UnauthenticatedError
from ister.server.certificates import Certificate, Pem
from ister.server.grpc.messages import Context
from ister.server.grpc.status import code_of
from ister.server.security import BEARER_HINT, TOKEN_GONE, Guard, Pass, bearer

HEADER = "authorization"

# grpcio has no types of its own.
_Continuation = Callable[[Any], Awaitable[Any]]
# What answers a call by writing messages.
_Stream = Callable[[bytes, Context], Awaitable[None]]


class TokenCheck(grpc.aio.ServerInterceptor):  # type: ignore[misc]
    """Answers calls without a token that the guard knows, before anybody else sees them.

    Streams that are under way when their token is taken back are ended by `sweep`.
    """

    def __init__(self, guard: Guard) -> None:
        self._guard = guard
        self._streams: dict[asyncio.Timeout, Pass] = {}

    async def intercept_service(
        self, continuation: _Continuation, handler_call_details: Any
    ) -> Any:
        """Let the call go on, or answer it."""
        try:
            shown = self._guard.check(_token_of(handler_call_details), door="grpc")
        except UnauthenticatedError as error:
            return _refusal(UnauthenticatedError(f"{error.reason}; {BEARER_HINT}"))
        handler = await continuation(handler_call_details)
        if handler is None or not handler.response_streaming:
            return handler
        return grpc.unary_stream_rpc_method_handler(self._watched(handler.unary_stream, shown))

    def sweep(self) -> None:
        """End the streams of those whose token was taken back."""
        self._guard.look()
        now_s = asyncio.get_running_loop().time()
        for limit in [one for one, shown in self._streams.items() if not self._guard.admits(shown)]:
            # Only once: it cannot be moved when its time is over.
            del self._streams[limit]
            limit.reschedule(now_s)

    def _watched(self, stream: _Stream, shown: Pass) -> _Stream:
        async def watched(data: bytes, context: Context) -> None:
            limit = asyncio.timeout(None)
            try:
                async with limit:
                    self._streams[limit] = shown
                    await stream(data, context)
            except TimeoutError:
                # The stream itself tells all of its errors: this is ours.
                await _end(context, UnauthenticatedError(TOKEN_GONE))
            finally:
                self._streams.pop(limit, None)

        return watched


def credentials(certificate: Certificate) -> grpc.ServerCredentials:
    """Return what a port needs to speak TLS; gRPC itself takes 1.2 and newer only."""
    shown = certificate.pem

    def renewed() -> grpc.ServerCertificateConfiguration | None:
        # In a thread of gRPC's, for each connection: it is to find what was checked already, or
        # nothing new. What gRPC cannot use leaves it with what it has.
        nonlocal shown
        pem = certificate.pem
        if pem is shown:
            return None
        shown = pem
        return _configuration(pem)

    asks = shown.client_ca is not None
    return grpc.dynamic_ssl_server_credentials(_configuration(shown), renewed, asks)


def _configuration(pem: Pem) -> grpc.ServerCertificateConfiguration:
    return grpc.ssl_server_certificate_configuration(
        [(pem.key, pem.cert)], root_certificates=pem.client_ca
    )


def _token_of(details: Any) -> str:
    for key, value in details.invocation_metadata:
        if key == HEADER:
            return bearer(value if isinstance(value, str) else value.decode("latin-1"))
    return ""


def _refusal(error: UnauthenticatedError) -> Any:
    async def refuse(_: object, context: Context) -> None:
        await _end(context, error)

    # Whatever the method is: one that streams is answered without waiting for a message, nor is any
    # of a stranger's read, which may have `REQUEST_BYTES_MAX`.
    return grpc.stream_stream_rpc_method_handler(refuse)


async def _end(context: Context, error: UnauthenticatedError) -> None:
    await context.abort(code_of(error), f"[{error.code}] {error}")
