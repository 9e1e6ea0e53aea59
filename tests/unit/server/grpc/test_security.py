"""Tokens at the gRPC doors: no call goes on without one, whatever its method is."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import grpc
import pytest

from ister.base.errors import UnauthenticatedError
from ister.server.grpc.security import TokenCheck
from ister.server.grpc.status import code_of
from ister.server.security import Guard

TOKEN = "vX3p9mQm2T7yLw0c"
OTHER = "0123456789abcdef-0123456789abcdef"


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
def check(tmp_path: Path) -> TokenCheck:
    file = tmp_path / "tokens"
    file.write_text(f"billing {TOKEN}\n")
    file.chmod(0o600)
    return TokenCheck(Guard(tokens=file))


async def passed(check: TokenCheck, *metadata: tuple[str, str | bytes]) -> Any:
    """Return what the check does with a call: "handler" when it goes on."""

    async def go_on(_: object) -> str:
        return "handler"

    return await check.intercept_service(go_on, Details(metadata))


@pytest.mark.parametrize(
    "value", [f"Bearer {TOKEN}", f"bearer {TOKEN}", f"Bearer {TOKEN}".encode()]
)
async def test_a_call_with_a_token_goes_on(check: TokenCheck, value: str | bytes) -> None:
    assert await passed(check, ("user-agent", "x"), ("authorization", value)) == "handler"


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
    assert OTHER not in text


def test_the_status_is_the_one_that_clients_ask_for_a_token_at() -> None:
    assert code_of(UnauthenticatedError("x")) is grpc.StatusCode.UNAUTHENTICATED
