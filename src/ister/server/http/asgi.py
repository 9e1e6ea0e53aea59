"""The shapes of ASGI that the door uses, an answer, and how it is sent."""

from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any, NamedTuple

# ASGI's own shapes: this file is the adapter.
Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
Header = tuple[bytes, bytes]

TEXT = "text/plain; charset=utf-8"
JSON = "application/json"


class Page(NamedTuple):
    """An answer."""

    status: int
    content_type: str
    body: bytes
    headers: tuple[Header, ...] = ()


def header_of(scope: Scope, name: bytes) -> bytes:
    """Return a header of the request, empty when there is none; of several the first."""
    headers: list[Header] = scope.get("headers", [])
    return next((value for key, value in headers if key == name), b"")


async def send_page(page: Page, scope: Scope, send: Send) -> None:
    """Send an answer; to HEAD without its body."""
    headers: list[Header] = [(b"cache-control", b"no-store"), *page.headers]
    # A 204 has no body, and must not say how long it is.
    if page.status != 204:
        headers += [
            (b"content-type", page.content_type.encode()),
            (b"content-length", str(len(page.body)).encode()),
            # A browser must not take what somebody published for a page.
            (b"x-content-type-options", b"nosniff"),
        ]
    await send({"type": "http.response.start", "status": page.status, "headers": headers})
    body = b"" if scope["method"] == "HEAD" else page.body
    await send({"type": "http.response.body", "body": body})
