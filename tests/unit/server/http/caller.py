"""Calls the HTTP application without a socket."""

from dataclasses import dataclass
from typing import Any

import msgspec

from ister.server.http import App
from ister.server.http.asgi import Header


@dataclass(frozen=True)
class Answer:
    """What the application answered."""

    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        """The body, which is JSON."""
        assert self.headers["content-type"] == "application/json"
        return msgspec.json.decode(self.body)

    @property
    def error(self) -> tuple[int, int, str]:
        """Status, number and name of an error."""
        told = self.json["error"]
        assert told["message"]
        return self.status, told["code"], told["name"]


class Caller:
    """Somebody who sends requests to one application."""

    def __init__(self, app: App) -> None:
        self.app = app

    async def __call__(
        self,
        method: str,
        target: str,
        body: Any = None,
        *,
        raw: bytes | None = None,
        headers: dict[str, str] | None = None,
    ) -> Answer:
        """Send a request; `body` as JSON, `raw` as it is."""
        told: list[Header] = [(b"host", b"broker")]
        parts = [raw or b""]
        if body is not None:
            parts = [msgspec.json.encode(body)]
            told.append((b"content-type", b"application/json"))
        told += [(name.encode(), value.encode()) for name, value in (headers or {}).items()]
        return await self.send(method, target, parts, told)

    async def send(
        self, method: str, target: str, parts: list[bytes], headers: list[Header]
    ) -> Answer:
        """Send a request whose body comes in parts."""
        path, _, query = target.partition("?")
        sent: list[Any] = []
        left = list(parts)

        async def receive() -> dict[str, Any]:
            if not left:
                return {"type": "http.disconnect"}
            part = left.pop(0)
            return {"type": "http.request", "body": part, "more_body": bool(left)}

        async def send(event: Any) -> None:
            sent.append(event)

        scope = {
            "type": "http",
            "method": method,
            "path": path,
            "raw_path": path.encode(),
            "query_string": query.encode(),
            "headers": headers,
        }
        await self.app(scope, receive, send)
        start, body = sent
        found = {name.decode(): value.decode() for name, value in start["headers"]}
        return Answer(start["status"], found, body["body"])
