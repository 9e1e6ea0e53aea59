"""Tokens at the gRPC doors: no call goes on without one, whatever its method is."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import grpc
import pytest

from ister.base.errors import UnauthenticatedError
from ister.server.grpc.security import TokenCheck
from ister.server.grpc.status import code_of
from ister.server.security import LOOK_MS, Guard
from ister.testing import settle

TOKEN = "vX3p9mQm2T7yLw0c"
OTHER = "0123456789abcdef-0123456789abcdef"
KNOWN = ("authorization", f"Bearer {TOKEN}")


@dataclass
class Details:
    """What gRPC tells of a call before it is made."""

    invocation_metadata: Sequence[tuple[str, str | bytes]]
    method: str = "/danube.Discovery/TopicLookup"


@dataclass
class Context:
    """Keeps how a call was ended, as gRPC's own does by raising."""

    ended: list[tuple[Any, str]] = field(default_factory=list)

    async def abort(self, code: Any, text: str) -> None:
        self.ended.append((code, text))
        raise ConnectionError("aborted")


@pytest.fixture
def file(tmp_path: Path) -> Path:
    file = tmp_path / "tokens"
    file.write_text(f"billing {TOKEN}\n")
    file.chmod(0o600)
    return file


@pytest.fixture
def check(file: Path) -> TokenCheck:
    return TokenCheck(Guard(tokens=file))


HANDLER = grpc.unary_unary_rpc_method_handler(lambda data, context: data)


async def passed(
    check: TokenCheck, *metadata: tuple[str, str | bytes], handler: Any = HANDLER
) -> Any:
    """Return what the check does with a call: `HANDLER` when it goes on."""

    async def go_on(_: object) -> Any:
        return handler

    return await check.intercept_service(go_on, Details(metadata))


@pytest.mark.parametrize(
    "value", [f"Bearer {TOKEN}", f"bearer {TOKEN}", f"Bearer {TOKEN}".encode()]
)
async def test_a_call_with_a_token_goes_on(check: TokenCheck, value: str | bytes) -> None:
    assert await passed(check, ("user-agent", "x"), ("authorization", value)) is HANDLER


async def test_a_method_that_nobody_knows_goes_on_to_be_told_so(check: TokenCheck) -> None:
    assert await passed(check, KNOWN, handler=None) is None


async def test_a_stream_whose_token_is_taken_back_is_ended_with_the_reason(file: Path) -> None:
    now_ms = 0
    check = TokenCheck(Guard(tokens=file, now_ms=lambda: now_ms))
    streaming: list[str] = []

    async def stream(data: bytes, context: object) -> None:
        streaming.append("begun")
        try:
            await asyncio.Event().wait()
        finally:
            streaming.append("ended")

    handler = grpc.unary_stream_rpc_method_handler(stream)
    watched = (await passed(check, KNOWN, handler=handler)).unary_stream
    context = Context()
    running = asyncio.create_task(watched(b"", context))
    await settle()
    check.sweep()
    await settle()
    assert streaming == ["begun"]

    file.write_text(f"billing {OTHER}\n")
    now_ms = LOOK_MS
    check.sweep()
    # Also when it takes a while.
    check.sweep()

    with pytest.raises(ConnectionError):
        await running
    assert streaming == ["begun", "ended"]
    [(code, text)] = context.ended
    assert code is grpc.StatusCode.UNAUTHENTICATED
    assert text.endswith("the token was taken back")


async def test_a_stream_that_ends_by_itself_is_not_looked_at_again(check: TokenCheck) -> None:
    async def stream(data: bytes, context: object) -> None:
        pass

    handler = grpc.unary_stream_rpc_method_handler(stream)
    await (await passed(check, KNOWN, handler=handler)).unary_stream(b"", Context())

    assert check._streams == {}


@pytest.mark.parametrize(
    "metadata",
    [
        [],
        [("authorization", "")],
        [("authorization", f"Bearer {OTHER}")],
        [("authorization", TOKEN)],
        [("authorization", b"Bearer \xff\xfe")],
        [("token", TOKEN)],
        # The first counts.
        [("authorization", f"Bearer {OTHER}"), ("authorization", f"Bearer {TOKEN}")],
    ],
)
async def test_a_call_without_a_token_is_answered_before_anybody_else_sees_it(
    check: TokenCheck, metadata: list[tuple[str, str | bytes]]
) -> None:
    handler = await passed(check, *metadata)
    context = Context()

    with pytest.raises(ConnectionError):
        await handler.stream_stream(None, context)
    [(code, text)] = context.ended
    assert code is grpc.StatusCode.UNAUTHENTICATED
    assert text.startswith("[2002] ")
    assert text.endswith("; send `authorization: Bearer TOKEN`")
    assert OTHER not in text


def test_the_status_is_the_one_that_clients_ask_for_a_token_at() -> None:
    assert code_of(UnauthenticatedError("x")) is grpc.StatusCode.UNAUTHENTICATED
