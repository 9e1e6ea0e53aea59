"""What the HTTP API makes of requests: methods, paths, queries and bodies, good and bad."""

from typing import cast

import msgspec
import pytest
from structlog.testing import capture_logs
from tests.unit.server.http.caller import Caller

from ister.registry import Registry
from ister.server.http import App, api
from ister.server.native import NativeDoor
from ister.server.operations import Dispatcher
from ister.testing import MemoryBroker

TOPIC = "/api/v1/namespaces/default/topics/orders"


async def test_a_method_that_a_path_has_not_is_told_which_it_has(call: Caller) -> None:
    answer = await call("POST", TOPIC)

    assert answer.error == (405, 1007, "BadRequestError")
    assert answer.headers["allow"] == "DELETE, GET, HEAD, OPTIONS, PATCH, PUT"


@pytest.mark.parametrize("path", [TOPIC, "/api/openapi.json", "/healthz"])
async def test_options_tells_the_methods_and_nothing_else(path: str, call: Caller) -> None:
    answer = await call("OPTIONS", path)

    assert answer.status == 204
    assert answer.body == b""
    assert "GET" in answer.headers["allow"]
    assert "content-length" not in answer.headers


async def test_head_answers_as_get_does_without_the_body(call: Caller) -> None:
    got = await call("GET", "/api/v1/namespaces")
    head = await call("HEAD", "/api/v1/namespaces")

    assert (head.status, head.headers, head.body) == (200, got.headers, b"")


@pytest.mark.parametrize(
    "path",
    [
        "/api/",
        "/api/v1",
        "/api/v1/",
        "/api/v2/namespaces",
        "/api/v1namespaces",
        "/api/v1/nothing",
        "/api/v1/namespaces/",
        "/api/v1/namespaces//topics",
        "/api/v1/namespaces/default/",
    ],
)
async def test_a_path_that_is_not_there_is_not_found(path: str, call: Caller) -> None:
    assert (await call("GET", path)).error == (404, 1007, "BadRequestError")


async def test_names_in_paths_are_decoded_one_by_one(call: Caller) -> None:
    await call("PUT", "/api/v1/namespaces/default/topics/%6Frders", {"kind": "live"})

    assert (await call("GET", TOPIC)).json["topic"] == "/default/orders"
    slash = await call("GET", "/api/v1/namespaces/default%2Ftopics%2Forders")
    assert slash.error == (400, 1007, "BadRequestError")


@pytest.mark.parametrize("path", ["%FF", "a%80b"])
async def test_a_path_or_query_that_is_not_utf8_is_refused(path: str, call: Caller) -> None:
    for target in (f"/api/v1/namespaces/{path}", f"/api/v1/topics?after={path}"):
        answer = await call("GET", target)

        assert answer.error == (400, 1007, "BadRequestError")
        assert "UTF-8" in answer.json["error"]["fields"]["reason"]


@pytest.mark.parametrize(
    ("query", "mistake"),
    [
        ("limit=0", "`$.limit`"),
        ("limit=1001", "`$.limit`"),
        ("limit=ten", "`$.limit`"),
        ("limit=", "`$.limit`"),
        ("kind=queue", "`$.kind`"),
        ("pattern=orders/eu", "`$.pattern`"),
        ("page=2", "unknown field `page`"),
        ("limit=1&limit=2", "twice"),
        ("&".join(f"a{n}=1" for n in range(65)), "parameters"),
    ],
)
async def test_a_mistake_in_a_query_is_named(query: str, mistake: str, call: Caller) -> None:
    answer = await call("GET", f"/api/v1/topics?{query}")

    assert answer.error == (400, 1007, "BadRequestError")
    assert mistake in answer.json["error"]["message"]


@pytest.mark.parametrize(
    ("body", "mistake"),
    [
        (b"", "body"),
        (b"{", "truncated"),
        (b"\xff", "malformed"),
        (b"[]", "object"),
        (b"null", "object"),
        (b"{}", "kind"),
        (b'{"kind": "queue"}', "`$.kind`"),
        (b'{"kind": "stream", "partitions": -1}', "`$.partitions`"),
        (b'{"kind": "stream", "partitions": "4"}', "`$.partitions`"),
        (b'{"kind": "stream", "max_bytes": 1e400}', "body"),
        (b'{"kind": "live", "durability": "fsync"}', "durability"),
        (b'{"kind": "live"} x', "malformed"),
        (b"[" * 100_000, "body"),
        (b'{"kind": ' * 10_000, "body"),
    ],
)
async def test_a_mistake_in_a_body_is_named(body: bytes, mistake: str, call: Caller) -> None:
    answer = await call("PUT", TOPIC, raw=body, headers={"content-type": "application/json"})

    assert answer.error == (400, 1007, "BadRequestError")
    assert mistake in answer.json["error"]["message"]


@pytest.mark.parametrize("content_type", ["", "text/plain", "application/jsonx", "json"])
async def test_a_body_that_is_not_said_to_be_json_is_refused(
    content_type: str, call: Caller
) -> None:
    headers = {"content-type": content_type} if content_type else {}

    answer = await call("PUT", TOPIC, raw=b'{"kind": "live"}', headers=headers)

    assert answer.error == (415, 1007, "BadRequestError")


async def test_a_compressed_body_is_refused(call: Caller) -> None:
    answer = await call("PUT", TOPIC, {"kind": "live"}, headers={"content-encoding": "gzip"})

    assert answer.error == (415, 1007, "BadRequestError")


@pytest.mark.parametrize("number", ["2.0", "2e0", "20e-1"])
async def test_a_whole_number_may_be_written_with_a_point(number: str, call: Caller) -> None:
    raw = f'{{"kind": "stream", "partitions": {number}}}'.encode()

    answer = await call("PUT", TOPIC, raw=raw, headers={"content-type": "application/json"})

    assert answer.json["partitions"] == 2


LARGE_BODIES = [
    b'{"kind": [' + b",".join([b"1.0"] * 100_000) + b"]}",
    b'{"kind": ' + b"1e308, " * 20_000 + b"}",
    b'{"kind": "stream", "partitions": {' + b'"a": 1e308, ' * 20_000 + b'"b": 1}}',
    b"{" + b",".join(b'"%d": 1' % number for number in range(20_000)) + b"}",
    b"[" + b"1e308, " * 20_000 + b"1]",
]


@pytest.mark.parametrize("raw", LARGE_BODIES, ids=range(len(LARGE_BODIES)))
async def test_a_large_body_of_many_parts_is_refused_before_it_is_taken_apart(
    raw: bytes, monkeypatch: pytest.MonkeyPatch, call: Caller
) -> None:
    """Each number, name and list would take its time, and hold up the broker together."""
    seen: list[str] = []
    monkeypatch.setattr(api, "_JSON", msgspec.json.Decoder(float_hook=seen.append))

    answer = await call("PUT", TOPIC, raw=raw, headers={"content-type": "application/json"})

    assert answer.error == (400, 1007, "BadRequestError")
    assert not seen


async def test_a_field_that_a_large_body_repeats_is_taken_apart_once(
    monkeypatch: pytest.MonkeyPatch, call: Caller
) -> None:
    seen: list[str] = []

    def hook(number: str) -> int:
        seen.append(number)
        return int(float(number))

    monkeypatch.setattr(api, "_JSON", msgspec.json.Decoder(float_hook=hook))
    raw = b'{"kind": "stream"' + b', "partitions": 3.0' * 10_000 + b', "partitions": 2.0}'

    answer = await call("PUT", TOPIC, raw=raw, headers={"content-type": "application/json"})

    assert answer.json["partitions"] == 2
    assert seen == ["2.0"]


async def test_a_large_text_leaves_the_rest_of_its_body_as_it_is(call: Caller) -> None:
    await call("PUT", TOPIC, {"kind": "stream"})
    payload = 'é"\\\n' * 100_000

    message = {"payload": payload, "key": "k", "attributes": {"a": "b"}}
    await call("POST", f"{TOPIC}/messages", message)

    (row,) = (await call("GET", f"{TOPIC}/messages")).json["rows"]
    assert {name: row[name] for name in message} == message


@pytest.mark.parametrize("number", ["2.5", "1e400", "1" * 10_000, "-1.0", "1e300"])
async def test_a_number_that_is_not_whole_or_too_large_is_refused(
    number: str, call: Caller
) -> None:
    raw = f'{{"kind": "stream", "partitions": {number}}}'.encode()

    answer = await call("PUT", TOPIC, raw=raw, headers={"content-type": "application/json"})

    assert answer.error == (400, 1007, "BadRequestError")


@pytest.mark.parametrize("text", [rb"\ud800", rb"\ud800x", b"\xed\xa0\x80", b"\xff", rb"\udc00"])
async def test_text_that_is_no_text_is_refused(text: bytes, call: Caller) -> None:
    await call("PUT", TOPIC, {"kind": "stream"})
    raw = b'{"payload": "' + text + b'", "key": "' + text + b'"}'

    answer = await call(
        "POST", f"{TOPIC}/messages", raw=raw, headers={"content-type": "application/json"}
    )

    assert answer.error == (400, 1007, "BadRequestError")


async def test_the_type_of_a_body_may_have_parameters(call: Caller) -> None:
    headers = {"content-type": "Application/JSON; charset=utf-8"}

    assert (await call("PUT", TOPIC, raw=b'{"kind": "live"}', headers=headers)).status == 201


async def test_a_body_may_be_left_out_where_every_field_may(call: Caller) -> None:
    await call("PUT", TOPIC, {"kind": "stream"})

    assert (await call("POST", f"{TOPIC}/purge")).json == {"messages": 0}


async def test_a_page_of_another_site_can_change_nothing(call: Caller) -> None:
    foreign = {"origin": "https://elsewhere.example"}

    answer = await call("PUT", TOPIC, {"kind": "live"}, headers=foreign)

    assert answer.error == (403, 2003, "ForeignSiteError")
    assert (await call("GET", TOPIC)).status == 404
    own = {"origin": "http://broker"}
    assert (await call("PUT", TOPIC, {"kind": "live"}, headers=own)).status == 201


async def test_a_peer_that_leaves_while_it_sends_gets_no_answer(call: Caller) -> None:
    sent: list[object] = []

    async def receive() -> dict[str, object]:
        return {"type": "http.disconnect"}

    async def send(event: object) -> None:
        sent.append(event)

    scope = {"type": "http", "method": "PUT", "path": TOPIC, "headers": []}
    await call.app(scope, receive, send)

    assert sent == []


async def test_what_takes_too_long_is_told_so(
    call: Caller, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(api, "ANSWER_S", 0.0)

    answer = await call("PUT", TOPIC, {"kind": "stream"})

    assert answer.error == (503, 6005, "RequestTimeoutError")
    assert answer.headers["retry-after"] == "1"


async def test_a_bug_costs_its_request_only(broker: MemoryBroker) -> None:
    engine = broker.engine
    call = Caller(App(engine, NativeDoor(engine), Dispatcher(engine, cast("Registry", object()))))

    answer = await call("GET", "/api/v1/schemas")

    assert answer.error == (500, 7001, "InternalError")
    assert (await call("GET", "/api/v1/broker")).status == 200


async def test_requests_that_meet_a_bug_do_not_fill_the_log(broker: MemoryBroker) -> None:
    engine = broker.engine
    call = Caller(App(engine, NativeDoor(engine), Dispatcher(engine, cast("Registry", object()))))

    with capture_logs() as lines:
        for _ in range(20):
            await call("GET", "/api/v1/schemas")

    assert [(line["event"], line["times"]) for line in lines] == [("http_request_failed", 1)]


@pytest.mark.parametrize("path", ["/", "/api", "/metrics/", "/healthz/x"])
async def test_there_are_no_other_pages(path: str, call: Caller) -> None:
    assert (await call("GET", path)).status == 404


@pytest.mark.parametrize("path", ["/metrics", "/healthz", "/readyz"])
async def test_pages_are_only_read(path: str, call: Caller) -> None:
    answer = await call("POST", path)

    assert answer.status == 405
    assert answer.headers["allow"] == "GET, HEAD, OPTIONS"
    assert (await call("HEAD", path)).body == b""
