"""The pages of the HTTP door, as an ASGI application: metrics, health, and the API below `/api`."""

import asyncio
from typing import TYPE_CHECKING

from ister.broker import Broker
from ister.server.admin import Admin
from ister.server.http.asgi import TEXT, Page, Receive, Scope, Send, send_page
from ister.server.http.snapshot import Snapshot, take_snapshot
from ister.server.native import NativeDoor

if TYPE_CHECKING:
    from ister.server.http.api import Api

METRICS_TEXT = "text/plain; version=0.0.4; charset=utf-8"

_ALLOW = (b"allow", b"GET, HEAD, OPTIONS")


class App:
    """Answers from the state of the broker and its native door at that moment."""

    def __init__(self, broker: Broker, native: NativeDoor, admin: Admin | None = None) -> None:
        self._broker = broker
        self._native = native
        self._admin = admin or Admin(broker)
        self._api: Api | None = None
        self._scrape: asyncio.Lock | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        if scope["path"].startswith("/api/"):
            page = await (await self._opened_api()).answer(scope, receive)
        else:
            page = await self._page(scope["path"], scope["method"])
        if page is not None:
            await send_page(page, scope, send)

    async def _opened_api(self) -> "Api":
        if self._api is None:
            # The first request loads the API, in a thread, so that start-up need not.
            self._api = await asyncio.to_thread(_load_api, self._admin)
        return self._api

    async def _page(self, path: str, method: str) -> Page:
        pages = {"/metrics": self._metrics, "/healthz": self._health, "/readyz": self._ready}
        found = pages.get(path)
        if found is None:
            return Page(404, TEXT, b"not found: there are /metrics, /healthz, /readyz, /api/v1\n")
        if method == "OPTIONS":
            return Page(204, TEXT, b"", (_ALLOW,))
        if method not in ("GET", "HEAD"):
            return Page(405, TEXT, b"only GET\n", (_ALLOW,))
        return await found()

    async def _health(self) -> Page:
        """Whoever answers is alive."""
        return Page(200, TEXT, b"ok\n")

    async def _ready(self) -> Page:
        if self._native.closing:
            return Page(503, TEXT, b"closing\n")
        if error := self._broker.streams.error:
            # Reads and live topics go on; who publishes to streams should go elsewhere.
            return Page(503, TEXT, f"{error}\n".encode())
        return Page(200, TEXT, b"ready\n")

    async def _metrics(self) -> Page:
        if self._scrape is None:
            self._scrape = asyncio.Lock()
        # One scrape at a time: text for a thousand topics takes tens of milliseconds, which a
        # thread spends beside the event loop; many threads would starve it.
        async with self._scrape:
            snapshot = take_snapshot(self._broker, self._native, self._admin.registry)
            body = await asyncio.to_thread(_render, snapshot)
        return Page(200, METRICS_TEXT, body)


def _load_api(admin: Admin) -> "Api":
    from ister.server.http.api import Api

    return Api(admin)


def _render(snapshot: Snapshot) -> bytes:
    # The first scrape loads the library, in its thread, so that start-up need not.
    from ister.server.http.metrics import render_metrics

    return render_metrics(snapshot)
