"""The token of a client: shown on each connection, asked for anew, and never told."""

import asyncio
import logging
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

import ister
from ister.base.errors import BadRequestError, NotConnectedError, UnauthenticatedError
from ister.base.limits import Limits
from ister.broker import Broker
from ister.client import Token
from ister.client.aio.connection.tokens import TokenSource
from ister.client.session import access_of
from ister.server.native import NativeDoor
from ister.server.security import LOOK_MS, Authenticator
from ister.telemetry import SystemClock
from ister.testing import MemoryTransport, VirtualClock, connect_pair, settle

TOKEN = "vX3p9mQm2T7yLw0c"
OTHER = "0123456789abcdef-0123456789abcdef"
URL = "ister://localhost"


class Asking:
    """A broker in memory that asks for tokens, as a door with a file of them does."""

    def __init__(self, file: Path) -> None:
        self.attempts = 0
        self._file = file
        self._authenticator_ms = 0
        self.know(TOKEN)
        self._authenticator = Authenticator(tokens=file, now_ms=lambda: self._authenticator_ms)
        broker = Broker(
            name="b",
            limits=Limits(),
            clock=SystemClock(asyncio.get_running_loop().call_later),
            random_slot=lambda _: 0,
        )
        self.door = NativeDoor(broker, busy_poll_us=0, authenticator=self._authenticator)
        self._transports: list[MemoryTransport] = []

    def know(self, *tokens: str) -> None:
        """Have these tokens in the file, and no other."""
        self._file.write_text("".join(f"billing {token}\n" for token in tokens))
        self._file.chmod(0o600)
        self._authenticator_ms += LOOK_MS

    def connect(self, token: Token | None, *, clock: VirtualClock | None = None) -> ister.Client:
        """Return a client of this broker."""
        return ister.connect(
            URL, token=token, connector=self._connector, busy_poll=0.0, clock=clock
        )

    def disconnect_all(self) -> None:
        """Cut every connection."""
        for transport in self._transports:
            transport.abort()

    async def _connector(
        self, protocol: Callable[[], asyncio.BaseProtocol], address: tuple[str, int]
    ) -> MemoryTransport:
        self.attempts += 1
        self._transports.append(connect_pair(protocol, self.door.session))
        return self._transports[-1]


@pytest.fixture
async def asking(tmp_path: Path) -> AsyncIterator[Asking]:
    asking = Asking(tmp_path / "tokens")
    yield asking
    await asking.door.close(deadline_s=0)


class Function:
    """An application's function for the token: gives what it has, one after the other."""

    def __init__(self, *answers: object) -> None:
        self.answers = list(answers)
        self.calls = 0
        self.threads: set[int] = set()

    def __call__(self) -> str:
        self.calls += 1
        self.threads.add(threading.get_ident())
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if isinstance(answer, Exception):
            raise answer
        return answer  # type: ignore[return-value]


async def test_a_token_that_the_broker_knows_lets_a_client_in(asking: Asking) -> None:
    async with asking.connect(TOKEN) as client:
        assert await client.namespaces() == ["default", "system"]


@pytest.mark.parametrize(
    ("token", "reason"),
    [
        (None, "no token was given: this broker asks for one"),
        (OTHER, "unknown token"),
        (lambda: OTHER, "unknown token"),
    ],
    ids=["none", "text", "function"],
)
async def test_a_token_that_the_broker_does_not_know_is_refused_and_not_tried_again(
    asking: Asking, token: Token | None, reason: str
) -> None:
    with pytest.raises(UnauthenticatedError) as caught:
        await asking.connect(token)

    assert caught.value.reason == reason
    assert asking.attempts == 1


async def test_a_function_is_asked_on_each_connect_and_not_in_the_event_loop(
    asking: Asking,
) -> None:
    function = Function(TOKEN, OTHER)
    async with asking.connect(function) as client:
        asking.know(OTHER)
        asking.disconnect_all()

        await client.namespaces()
        assert function.calls == asking.attempts == 2
        assert threading.get_ident() not in function.threads


async def test_a_function_that_fails_at_first_tells_its_own_error(asking: Asking) -> None:
    with pytest.raises(RuntimeError, match="the vault is shut"):
        await asking.connect(Function(RuntimeError("the vault is shut")))

    assert asking.attempts == 0


@pytest.mark.parametrize("answer", [None, TOKEN.encode(), f"{TOKEN}\n", f"{TOKEN} x"])
async def test_a_function_that_returns_no_token_is_told_without_what_it_returned(
    asking: Asking, answer: object
) -> None:
    with pytest.raises(BadRequestError, match="a token is") as caught:
        await asking.connect(Function(answer))

    assert TOKEN not in str(caught.value)


async def test_a_function_that_fails_on_a_reconnect_is_asked_again(
    asking: Asking, caplog: pytest.LogCaptureFixture
) -> None:
    function = Function(TOKEN, RuntimeError("the vault is shut"), f"{TOKEN}\n", TOKEN)
    async with asking.connect(function) as client:
        with caplog.at_level(logging.DEBUG, logger="ister.client"):
            asking.disconnect_all()
            await client.namespaces()

        assert function.calls == 4
        assert asking.attempts == 2
    events = [record.message.split()[0] for record in caplog.records]
    assert events.count("token_failed") == 2
    assert "Traceback" not in caplog.text
    assert "the vault is shut" not in caplog.text
    assert TOKEN not in caplog.text


async def test_a_function_whose_token_is_refused_on_a_reconnect_is_asked_again(
    asking: Asking,
) -> None:
    function = Function(TOKEN, TOKEN, OTHER)
    async with asking.connect(function) as client:
        asking.know(OTHER)
        asking.disconnect_all()

        await client.namespaces()
        assert function.calls == asking.attempts == 3


async def test_text_that_is_refused_on_a_reconnect_ends_the_client_with_the_reason(
    asking: Asking,
) -> None:
    async with asking.connect(TOKEN) as client:
        asking.know(OTHER)
        asking.disconnect_all()

        with pytest.raises(UnauthenticatedError):
            await client.namespaces()
        with pytest.raises(UnauthenticatedError):
            await client.namespaces()
        assert asking.attempts == 2


async def test_a_token_that_is_taken_back_ends_the_connection_and_its_client_is_told(
    asking: Asking,
) -> None:
    async with asking.connect(TOKEN) as client, client.subscribe("/default/x", "s") as sub:
        waiting = asyncio.ensure_future(sub.receive())
        await settle()
        asking.know(OTHER)
        asking.door._sweep()

        with pytest.raises(UnauthenticatedError):
            await waiting
    assert asking.attempts == 2


async def test_a_client_whose_token_was_renewed_goes_on_with_the_new_one(asking: Asking) -> None:
    function = Function(TOKEN, OTHER)
    async with asking.connect(function) as client, client.producer("/default/x") as producer:
        await producer.send(b"one")
        asking.know(OTHER)
        asking.door._sweep()
        await settle()

        await producer.send(b"two")
        assert function.calls == asking.attempts == 2


async def test_who_has_another_token_notices_nothing_of_one_that_is_taken_back(
    asking: Asking,
) -> None:
    asking.know(TOKEN, OTHER)
    async with asking.connect(OTHER) as client:
        asking.know(OTHER)
        asking.door._sweep()

        await client.namespaces()
        assert asking.attempts == 1


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (BadRequestError("token file t: is empty"), "token file t: is empty"),
        # Of what is not ours nobody knows what its text has in it.
        (RuntimeError(f"no longer good: {TOKEN}"), "RuntimeError"),
    ],
)
async def test_who_waits_for_a_connection_is_told_why_there_is_none(
    asking: Asking, error: Exception, said: str
) -> None:
    clock = VirtualClock()
    async with asking.connect(Function(TOKEN, error), clock=clock) as client:
        asking.disconnect_all()
        await clock.elapse(0.2)
        # It fails in a thread, and has most likely done so.
        if (asked := client.link._tokens._asked) is not None:
            await asyncio.wait({asked}, timeout=5.0)
        await settle()
        waiting = asyncio.ensure_future(client.namespaces())
        await clock.elapse(31.0)

        with pytest.raises(NotConnectedError) as caught:
            await waiting
    assert caught.value.reason == f"reconnecting; no token: {said}"


async def test_a_function_that_hangs_costs_one_thread_and_is_waited_for_again() -> None:
    opened, calls = threading.Event(), []

    def function() -> str:
        calls.append(1)
        opened.wait(10.0)
        return TOKEN

    source = TokenSource(access_of(URL, function), timeout_s=0.02)
    for _ in range(3):
        with pytest.raises(NotConnectedError, match=r"the token takes longer than 0\.02 s"):
            await source.get()
    opened.set()
    source._timeout_s = 10.0

    assert await source.get() == TOKEN
    assert len(calls) == 1
    # And then asked anew.
    assert await source.get() == TOKEN
    assert len(calls) == 2


async def test_a_client_can_be_closed_while_its_function_hangs(asking: Asking) -> None:
    opened, asked = threading.Event(), asyncio.Event()
    loop = asyncio.get_running_loop()
    calls = 0

    def function() -> str:
        nonlocal calls
        calls += 1
        if calls > 1:
            loop.call_soon_threadsafe(asked.set)
            opened.wait(10.0)
        return TOKEN

    client = await asking.connect(function)
    asking.disconnect_all()
    await asked.wait()
    async with asyncio.timeout(5.0):
        await client.close()
    opened.set()

    assert asking.attempts == 1


HANGING = """
import asyncio, sys, time
from ister.base.errors import NotConnectedError
import ister


def token():
    time.sleep(3600)


async def main():
    await ister.connect("ister://127.0.0.1:1", token=token, timeout=0.05)

try:
    if sys.argv[1] == "sync":
        ister.sync.connect("ister://127.0.0.1:1", token=token, timeout=0.05)
    else:
        asyncio.run(main())
except NotConnectedError as error:
    print(error.reason)
"""


@pytest.mark.parametrize("how", ["sync", "aio"])
def test_a_function_that_hangs_keeps_no_process_from_ending(how: str) -> None:
    ended = subprocess.run(
        [sys.executable, "-c", HANGING, how],
        capture_output=True,
        text=True,
        timeout=30,
        check=True,
    )

    assert ended.stdout == "the function for the token takes longer than 0.05 s\n"
    assert ended.stderr == ""
