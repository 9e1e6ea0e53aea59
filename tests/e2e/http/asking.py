"""Asks a real broker over HTTP, on a connection of its own."""

import http.client
from dataclasses import dataclass
from typing import Any

import msgspec

WAIT_S = 20.0
API = "/api/v1"
ORDERS = f"{API}/namespaces/default/topics/orders"


@dataclass(frozen=True)
class Answer:
    """What the broker answered; `json` is `None` when there was no body."""

    status: int
    json: Any

    @property
    def error(self) -> tuple[int, int]:
        """Status and number of an error."""
        return self.status, self.json["error"]["code"]


def ask(address: str, method: str, target: str, body: Any = None) -> Answer:
    """Send a request with a body of JSON, if any, and return the answer."""
    connection = http.client.HTTPConnection(address, timeout=WAIT_S)
    try:
        headers = {} if body is None else {"content-type": "application/json"}
        data = None if body is None else msgspec.json.encode(body)
        connection.request(method, target, data, headers)
        answer = connection.getresponse()
        text = answer.read()
        return Answer(answer.status, msgspec.json.decode(text) if text else None)
    finally:
        connection.close()
