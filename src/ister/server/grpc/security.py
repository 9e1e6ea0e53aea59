"""TLS and tokens at the gRPC doors: every call has to bring one, whatever its method is."""

from collections.abc import Awaitable, Callable
from typing import Any

import grpc

from ister.base.errors import UnauthenticatedError
from ister.server.grpc.messages import Context
from ister.server.grpc.status import code_of
from ister.server.security import Guard, Pem, bearer

HEADER = "authorization"

# grpcio has no types of its own.
_Continuation = Callable[[Any], Awaitable[Any]]


class TokenCheck(grpc.aio.ServerInterceptor):  # type: ignore[misc]
    """Answers calls without a token that the guard knows, before anybody else sees them."""

    def __init__(self, guard: Guard) -> None:
        self._guard = guard

    async def intercept_service(
        self, continuation: _Continuation, handler_call_details: Any
    ) -> Any:
        """Let the call go on, or answer it."""
        try:
            self._guard.check(_token_of(handler_call_details), door="grpc")
        except UnauthenticatedError as error:
            return _refusal(error)
        return await continuation(handler_call_details)


def credentials(pem: Pem) -> grpc.ServerCredentials:
    """Return what a port needs to speak TLS; gRPC itself takes 1.2 and newer only."""
    return grpc.ssl_server_credentials(
        [(pem.key, pem.cert)],
        root_certificates=pem.client_ca,
        require_client_auth=pem.client_ca is not None,
    )


def _token_of(details: Any) -> str:
    for key, value in details.invocation_metadata:
        if key == HEADER:
            return bearer(value if isinstance(value, str) else value.decode("latin-1"))
    return ""


def _refusal(error: UnauthenticatedError) -> Any:
    async def refuse(_: object, context: Context) -> None:
        await context.abort(code_of(error), f"[{error.code}] {error}")

    # Whatever the method is: one that streams is answered without waiting for a message, nor is any
    # of a stranger's read, which may have `REQUEST_BYTES_MAX`.
    return grpc.stream_stream_rpc_method_handler(refuse)
