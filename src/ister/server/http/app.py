"""The pages of the HTTP door, as an ASGI application: metrics, health, and the API below `/api`."""

import asyncio
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

import structlog

from ister.base.errors import ForeignSiteError, UnauthenticatedError
from ister.broker import Broker
from ister.server.http.asgi import TEXT, Page, Receive, Scope, Send, header_of, send_page
from ister.server.http.faults import error_page, foreign_page
from ister.server.http.sites import ANY, Sites
from ister.server.http.snapshot import Snapshot, take_snapshot
from ister.server.native import NativeDoor
from ister.server.operations import Caller, Dispatcher
from ister.server.security import BEARER_HINT, Authenticator, bearer
from ister.telemetry import Occasions

if TYPE_CHECKING:
    from ister.server.http.api import Api

METRICS_TEXT = "text/plain; version=0.0.4; charset=utf-8"

# For those without a token, where one is asked for.
STORAGE_FAILS = "the storage fails: show a token, or look at the log, to know more"

_ALLOW = (b"allow", b"GET, HEAD, OPTIONS")
# Open to all: who looks after machines is given no tokens.
_OPEN = frozenset({"/healthz", "/readyz"})

logger = structlog.get_logger("http")


class App:
    """Answers from the state of the broker and its native door at that moment."""

    def __init__(
        self,
        broker: Broker,
        native: NativeDoor,
        dispatcher: Dispatcher | None = None,
        authenticator: Authenticator | None = None,
        sites: Sites | None = None,
    ) -> None:
        self._broker = broker
        self._sites = sites or Sites([ANY])
        self._told = Occasions(broker.clock.monotonic_ms)
        self._native = native
        self._dispatcher = dispatcher or Dispatcher(broker)
        self.authenticator = authenticator or Authenticator()
        self._api: Api | None = None
        self._scrape: asyncio.Lock | None = None

    @property
    def now_ms(self) -> Callable[[], int]:
        """A clock that only rises."""
        return self._broker.clock.monotonic_ms

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        admitted = self._admit(scope)
        if isinstance(admitted, Page):
            await send_page(admitted, scope, send)
            return
        if scope["path"].startswith("/api/"):
            page = await (await self._opened_api()).answer(scope, receive, admitted)
        else:
            page = await self._page(scope)
        if page is not None:
            await send_page(page, scope, send)

    def _admit(self, scope: Scope) -> Caller | Page:
        """Return who asks, or the refusal for a request that may not be answered.

        Such a request has no valid token, or comes from a foreign web site.
        """
        peer = scope.get("client")
        address = f"{peer[0]}:{peer[1]}" if peer else ""
        if scope["path"] in _OPEN:
            return Caller("http", address=address)
        try:
            self._check_site(scope)
        except ForeignSiteError as error:
            # A scraper shows its operator the status alone: the log has the way out.
            if times := self._told.times(error.header):
                logger.info("client_refused", address=address, error=str(error), times=times)
            return foreign_page(error)
        try:
            shown = self.authenticator.check(_token_of(scope), door="http", address=address)
        except UnauthenticatedError as error:
            return error_page(UnauthenticatedError(f"{error.reason}; {BEARER_HINT}"))
        return Caller("http", shown.name, address)

    def _check_site(self, scope: Scope) -> None:
        # Who has to show a token shows what no page of a site has.
        if not self.authenticator.asks:
            self._sites.check_host(scope)
        if scope["method"] != "OPTIONS":
            self._sites.check_origin(scope)

    async def _opened_api(self) -> "Api":
        if self._api is None:
            # The first request loads the API, in a thread, so that start-up need not.
            self._api = await asyncio.to_thread(_load_api, self._dispatcher, self.authenticator)
        return self._api

    async def _page(self, scope: Scope) -> Page:
        method, pages = scope["method"], {"/metrics": self._metrics, "/healthz": self._health}
        pages["/readyz"] = partial(self._ready, scope)
        found = pages.get(scope["path"])
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

    async def _ready(self, scope: Scope) -> Page:
        if self._native.closing:
            return Page(503, TEXT, b"closing\n")
        if error := self._broker.streams.error:
            # Reads and live topics go on; who publishes to streams should go elsewhere. What fails,
            # and where it lies, is nothing for strangers.
            known = self.authenticator.find(_token_of(scope)) is not None
            return Page(503, TEXT, f"{error if known else STORAGE_FAILS}\n".encode())
        return Page(200, TEXT, b"ready\n")

    async def _metrics(self) -> Page:
        if self._scrape is None:
            self._scrape = asyncio.Lock()
        # One scrape at a time: text for a thousand topics takes tens of milliseconds, which a
        # thread spends beside the event loop; many threads would starve it.
        async with self._scrape:
            snapshot = take_snapshot(
                self._broker, self._native, self._dispatcher.node.known_registry
            )
            body = await asyncio.to_thread(_render, snapshot)
        return Page(200, METRICS_TEXT, body)


def _token_of(scope: Scope) -> str:
    return bearer(header_of(scope, b"authorization").decode("latin-1"))


def _load_api(dispatcher: Dispatcher, authenticator: Authenticator) -> "Api":
    from ister.server.http.api import Api

    return Api(dispatcher, tokens=authenticator.asks)


def _render(snapshot: Snapshot) -> bytes:
    # The first scrape loads the library, in its thread, so that start-up need not.
    from ister.server.http.metrics import render_metrics

    return render_metrics(snapshot)
