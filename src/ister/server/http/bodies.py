"""Bodies of requests: read whole, within bounds of size, time and memory.

Always true: all bodies that are being read take at most `BODIES_BYTES_MAX`, however many peers
send them and however slowly.
"""

import asyncio
from http import HTTPStatus

from ister.base import size_text
from ister.base.errors import LimitReachedError
from ister.server.http.asgi import Receive, Scope, header_of
from ister.server.http.faults import RefusedError

# A schema or a message of the largest size that is sensible to send through JSON.
BODY_BYTES_MAX = 2 * 1024 * 1024
# Sixteen of the largest ones at once.
BODIES_BYTES_MAX = 32 * 1024 * 1024
# 2 MiB in ten seconds is a line of 1.7 Mbit/s.
BODY_S = 10.0

_CLOSE = (b"connection", b"close")


class Bodies:
    """Reads bodies."""

    def __init__(self) -> None:
        self.held_bytes = 0

    async def read(self, scope: Scope, receive: Receive) -> bytes | None:
        """Return the body of a request, `None` when its peer has left."""
        stated = header_of(scope, b"content-length")
        if stated and (len(stated) > 10 or int(stated) > BODY_BYTES_MAX):
            raise _too_large()
        held = 0
        parts = []
        try:
            async with asyncio.timeout(BODY_S):
                while True:
                    event = await receive()
                    if event["type"] == "http.disconnect":
                        return None
                    part: bytes = event.get("body", b"")
                    held += len(part)
                    self.held_bytes += len(part)
                    if held > BODY_BYTES_MAX:
                        raise _too_large()
                    if self.held_bytes > BODIES_BYTES_MAX:
                        raise LimitReachedError("http_bodies_bytes_max", BODIES_BYTES_MAX)
                    parts.append(part)
                    if not event.get("more_body", False):
                        return b"".join(parts)
        except TimeoutError:
            raise RefusedError(
                HTTPStatus.REQUEST_TIMEOUT, f"the body took longer than {BODY_S:g} s", _CLOSE
            ) from None
        finally:
            self.held_bytes -= held


def _too_large() -> RefusedError:
    # The connection stays open, and the rest is thrown away as it comes: most clients listen only
    # when they have sent everything, and would see nothing but a broken pipe. The door gives them
    # as long as it gives any peer that asks for nothing.
    return RefusedError(
        HTTPStatus.REQUEST_ENTITY_TOO_LARGE, f"a body has at most {size_text(BODY_BYTES_MAX)}"
    )
