"""The HTTP application of a broker that asks for tokens."""

from pathlib import Path

import msgspec
import pytest
from tests.unit.server.http.caller import Caller

from ister.metadata import MemoryMetadata
from ister.registry import Registry
from ister.server.http import App
from ister.server.http.api import ROUTES
from ister.server.http.openapi import document
from ister.server.native import NativeDoor
from ister.server.operations import Dispatcher
from ister.server.security import Authenticator
from ister.testing import MemoryBroker

TOKEN = "vX3p9mQm2T7yLw0c"
OTHER = "0123456789abcdef-0123456789abcdef"
KNOWN = {"authorization": f"Bearer {TOKEN}"}


@pytest.fixture
async def call(broker: MemoryBroker, tmp_path: Path) -> Caller:
    """An application that asks everybody."""
    file = tmp_path / "tokens"
    file.write_text(f"billing {TOKEN}\n")
    file.chmod(0o600)
    registry = await Registry.open(MemoryMetadata(), now_ms=broker.clock.now_ms)
    engine = broker.engine
    authenticator = Authenticator(tokens=file)
    return Caller(App(engine, NativeDoor(engine), Dispatcher(engine, registry), authenticator))


@pytest.mark.parametrize("path", ["/healthz", "/readyz"])
async def test_who_looks_after_machines_needs_no_token(call: Caller, path: str) -> None:
    assert (await call("GET", path)).status == 200


PATHS = [
    "/metrics",
    "/api/v1/topics",
    "/api/openapi.json",
    "/nowhere",
    "/healthz/",
    "//healthz",
    "/healthz/../metrics",
    "/HEALTHZ",
    "/api/v1/nowhere",
]


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("method", ["GET", "POST", "OPTIONS"])
async def test_everything_else_asks_before_it_tells_anything(
    call: Caller, method: str, path: str
) -> None:
    answer = await call(method, path)

    assert answer.error == (401, 2002, "UnauthenticatedError")
    assert answer.headers["www-authenticate"] == "Bearer"
    assert answer.headers["connection"] == "close"
    assert answer.json["error"]["message"].endswith("; send `authorization: Bearer TOKEN`")


@pytest.mark.parametrize("path", ["/metrics", "/api/v1/topics", "/api/openapi.json"])
async def test_a_token_that_the_broker_knows_opens_them(call: Caller, path: str) -> None:
    assert (await call("GET", path, headers=KNOWN)).status == 200


@pytest.mark.parametrize(
    "header",
    [f"Bearer {OTHER}", f"Basic {TOKEN}", TOKEN, "Bearer", "", f"Bearer {TOKEN}x", "Bearer é"],
)
async def test_what_is_no_token_of_this_broker_opens_nothing_and_is_not_shown(
    call: Caller, header: str
) -> None:
    answer = await call("GET", "/api/v1/topics", headers={"authorization": header})

    assert answer.status == 401
    assert TOKEN.encode() not in answer.body
    assert OTHER.encode() not in answer.body


async def test_a_refused_request_changes_nothing(call: Caller) -> None:
    refused = await call("POST", "/api/v1/namespaces", {"name": "mine"})

    assert refused.status == 401
    assert b"mine" not in (await call("GET", "/api/v1/namespaces", headers=KNOWN)).body


async def test_the_document_says_that_tokens_are_asked_for(call: Caller) -> None:
    answer = await call("GET", "/api/openapi.json", headers=KNOWN)

    told = msgspec.json.encode(document(ROUTES.table, tokens=True))
    assert answer.json == msgspec.json.decode(told)
