"""The token of a client, asked for again for each connection."""

import asyncio
import contextlib
import threading
from collections.abc import Callable

from ister.base.errors import NotConnectedError
from ister.client.session import Access, check_token


class TokenSource:
    """Gets the token that the application gave, as text or as a function.

    Always true: at most one call of the function is under way.
    """

    def __init__(self, access: Access, *, timeout_s: float) -> None:
        self._access = access
        self._timeout_s = timeout_s
        # The call that is under way.
        self._asked: asyncio.Future[str | BaseException] | None = None

    @property
    def may_change(self) -> bool:
        """Whether there may be another token the next time."""
        return callable(self._access.token)

    async def get(self) -> str:
        """Return the token, or raise what the function raised.

        Raises `BadRequestError` for what is no token, and `NotConnectedError` when the function
        takes too long.
        """
        token = self._access.token
        return check_token(await self._ask(token) if callable(token) else token)

    async def _ask(self, function: Callable[[], str]) -> str:
        """Call the function in a thread: it may have to ask somebody, and wait.

        One that hangs is waited for again the next time: so it costs one thread for good, and not
        one for each attempt.
        """
        if self._asked is None:
            self._asked = _call_aside(function)
        done, _ = await asyncio.wait({self._asked}, timeout=self._timeout_s)
        if not done:
            reason = f"the function for the token takes longer than {self._timeout_s:g} s"
            raise NotConnectedError(self._access.shown(), reason)
        asked, self._asked = self._asked, None
        outcome = asked.result()
        if isinstance(outcome, BaseException):
            raise outcome
        return outcome


def _call_aside(function: Callable[[], str]) -> "asyncio.Future[str | BaseException]":
    """Call the function in a thread of its own, which keeps no process from ending.

    One of an executor would: they are all waited for in the end.
    """
    loop = asyncio.get_running_loop()
    asked: asyncio.Future[str | BaseException] = loop.create_future()

    def run() -> None:
        outcome: str | BaseException
        try:
            outcome = function()
        except BaseException as error:  # noqa: BLE001 - it is raised where it is waited for
            outcome = error
        # The loop may be closed: then nobody waits any more.
        with contextlib.suppress(RuntimeError):
            loop.call_soon_threadsafe(_settle, asked, outcome)

    threading.Thread(target=run, name="ister-token", daemon=True).start()
    return asked


def _settle(asked: "asyncio.Future[str | BaseException]", outcome: str | BaseException) -> None:
    if not asked.done():
        asked.set_result(outcome)
