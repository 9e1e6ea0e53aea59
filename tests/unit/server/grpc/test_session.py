"""Calls on one gRPC connection: how requests are read, answered, refused and given up."""

from pathlib import Path

import pytest
from structlog.testing import capture_logs
from tests.unit.server.grpc.caller import Desk, message, refusal, statuses
from tests.unit.server.http2 import peer as http2
from tests.unit.server.http2.peer import END_STREAM, PING, frame

from ister.base.errors import LimitReachedError
from ister.base.limits import MIB
from ister.server.grpc.calls.calls import DETAILS_MAX, encode_text
from ister.server.grpc.calls.session import LARGE_READ_BYTES, REQUEST_BYTES_MAX
from ister.server.grpc.calls.status import StatusCode
from ister.server.http2 import ErrorCode
from ister.server.security import NO_TOKEN, TOKEN_GONE, UNKNOWN_TOKEN
from ister.testing.clock import settle

TOKEN, OTHER = "vX3p9mQm2T7yLw0c", "another-token-of-some-length"
AUTHORIZED = (b"authorization", f"Bearer {TOKEN}".encode())


@pytest.fixture
def tokens(tmp_path: Path) -> Path:
    """Return a file with one token."""
    path = tmp_path / "tokens"
    path.write_text(f"billing {TOKEN}\n")
    path.chmod(0o600)
    return path


# Answers


async def test_unary_call_is_answered() -> None:
    caller = Desk.open().caller()

    answer = caller.answer(caller.call(body=message(b"hello")))

    assert answer.headers == {":status": "200", "content-type": "application/grpc"}
    assert answer.messages == [b"hello"]
    assert answer.trailers == {"grpc-status": "0"}
    assert caller.session.is_idle


async def test_empty_message_is_a_message() -> None:
    caller = Desk.open().caller()

    assert caller.answer(caller.call()).messages == [b""]


async def test_request_may_come_in_any_pieces() -> None:
    desk = Desk.open()
    caller = desk.caller()
    body = message(b"hello")
    stream_id, head = caller.headers()
    caller.send(head)
    for place in range(len(body)):
        caller.send(http2.data(stream_id, body[place : place + 1]))

    caller.send(http2.data(stream_id, b"", END_STREAM))

    assert caller.answer(stream_id).messages == [b"hello"]
    assert desk.server._buffered_bytes == 0


async def test_calls_are_answered_in_the_order_of_their_answers() -> None:
    desk = Desk.open()
    caller = desk.caller()
    first, second = caller.call("/t/Later"), caller.call("/t/Later")

    desk.table.replies[1](b"two")
    desk.table.replies[0](b"one")
    await settle()

    assert caller.answer(second).messages == [b"two"]
    assert caller.answer(first).messages == [b"one"]


async def test_second_answer_to_a_call_is_dropped() -> None:
    desk = Desk.open()
    caller = desk.caller()
    stream_id = caller.call("/t/Later")

    desk.table.replies[0](b"one")
    desk.table.replies[0](b"two")
    await settle()

    assert caller.answer(stream_id).messages == [b"one"]


async def test_messages_of_a_stream_come_before_its_status() -> None:
    caller = Desk.open().caller()
    stream_id = caller.call("/t/Count", body=message(b"3"))
    await settle()

    answer = caller.answer(stream_id)

    assert (answer.messages, answer.status) == ([b"0", b"1", b"2"], StatusCode.OK)


async def test_stream_without_messages_has_a_status() -> None:
    caller = Desk.open().caller()
    stream_id = caller.call("/t/Count", body=message(b"0"))
    await settle()

    assert caller.answer(stream_id).trailers["grpc-status"] == "0"


async def test_large_read_is_the_last_of_its_turn() -> None:
    caller = Desk.open().caller()
    pings = frame(PING, 0, 0, bytes(8))

    reading = []
    for extra in (0, 1):
        caller.send(pings * (LARGE_READ_BYTES // len(pings) + extra))
        reading.append(caller.transport.reading)
    await settle()

    assert [*reading, caller.transport.reading] == [True, False, True]


# Requests that are refused


@pytest.mark.parametrize(
    ("body", "code", "text"),
    [
        (b"", StatusCode.INVALID_ARGUMENT, "no whole message"),
        (message(b"hello")[:4], StatusCode.INVALID_ARGUMENT, "no whole message"),
        (message(b"hello")[:-1], StatusCode.INVALID_ARGUMENT, "no whole message"),
        (message(b"a") + message(b"b"), StatusCode.INVALID_ARGUMENT, "more than one message"),
        (message(b"a") + b"\0", StatusCode.INVALID_ARGUMENT, "more than one message"),
        (message(b"a", flag=1), StatusCode.UNIMPLEMENTED, "compressed"),
    ],
)
async def test_request_that_is_not_one_message_is_refused(
    body: bytes, code: StatusCode, text: str
) -> None:
    desk = Desk.open()
    caller = desk.caller()

    answer = caller.answer(caller.call(body=body))

    assert answer.status == code
    assert text in answer.text
    assert desk.table.requests == []
    assert desk.server._buffered_bytes == 0


async def test_headers_that_end_the_request_have_no_message() -> None:
    caller = Desk.open().caller()
    stream_id, head = caller.headers(ended=True)

    caller.send(head)

    assert caller.answer(stream_id).status == StatusCode.INVALID_ARGUMENT


async def test_request_that_says_it_is_too_large_is_refused_at_once() -> None:
    caller = Desk.open().caller()
    prefix = b"\0" + (REQUEST_BYTES_MAX + 1).to_bytes(4)

    stream_id = caller.call(body=prefix, ended=False)

    answer = caller.answer(stream_id)
    assert answer.status == StatusCode.INVALID_ARGUMENT
    assert str(REQUEST_BYTES_MAX) in answer.text
    assert answer.reset == ErrorCode.NO_ERROR


async def test_data_of_a_refused_request_is_dropped() -> None:
    desk = Desk.open()
    caller = desk.caller()
    stream_id = caller.call("/t/Nothing", ended=False)

    caller.send(http2.data(stream_id, message(b"more"), END_STREAM))

    assert caller.answer(stream_id).status == StatusCode.UNIMPLEMENTED
    assert desk.server._buffered_bytes == 0
    assert caller.gone_away() is None


async def test_unknown_method_is_unimplemented() -> None:
    caller = Desk.open().caller()

    answer = caller.answer(caller.call("/t/Nothing"))

    assert answer.status == StatusCode.UNIMPLEMENTED
    assert "'/t/Nothing'" in answer.text
    assert answer.headers[":status"] == "200"


@pytest.mark.parametrize("encoding", [b"gzip", b"deflate", b"snappy"])
async def test_compression_is_unimplemented_and_the_answer_says_what_is_accepted(
    encoding: bytes,
) -> None:
    caller = Desk.open().caller()

    answer = caller.answer(caller.call("/t/Echo", (b"grpc-encoding", encoding)))

    assert answer.status == StatusCode.UNIMPLEMENTED
    assert answer.trailers["grpc-accept-encoding"] == "identity"


async def test_compressed_flag_is_answered_with_what_is_accepted() -> None:
    caller = Desk.open().caller()

    answer = caller.answer(caller.call(body=message(b"x", flag=1)))

    assert answer.trailers["grpc-accept-encoding"] == "identity"


async def test_identity_is_no_compression() -> None:
    caller = Desk.open().caller()

    stream_id = caller.call("/t/Echo", (b"grpc-encoding", b"identity"))

    assert caller.answer(stream_id).status == StatusCode.OK


async def test_call_with_too_many_headers_is_refused_for_good() -> None:
    caller = Desk.open().caller()
    extra = [(b"x-%d" % number, b"v" * 100) for number in range(150)]
    stream_id, head = caller.headers("/t/Echo", *extra, ended=True)
    block = head[9:]

    caller.send(http2.headers(stream_id, block[:16_000], END_STREAM))
    caller.send(http2.continuation(stream_id, block[16_000:]))

    answer = caller.answer(stream_id)
    # Not RESOURCE_EXHAUSTED, after which Danube's clients send the same again.
    assert answer.status == StatusCode.INVALID_ARGUMENT
    assert answer.text.endswith("16384 at most")


@pytest.mark.parametrize("content_type", [b"application/json", b"text/html", b""])
async def test_other_content_types_are_415(content_type: bytes) -> None:
    caller = Desk.open().caller()
    fields = [field for field in http2.GRPC if field[0] != b"content-type"]
    block = http2.encode([*fields, (b"content-type", content_type)])

    caller.send(http2.headers(1, block))

    answer = caller.answer(1)
    assert (answer.headers, answer.ended) == ({":status": "415"}, True)


async def test_other_verbs_are_405() -> None:
    caller = Desk.open().caller()

    answer = caller.answer(caller.call(method=b"GET"))

    assert (answer.headers, answer.ended) == ({":status": "405"}, True)


# Errors of handlers


@pytest.mark.parametrize("path", ["/t/Raise", "/t/DirectBug"])
async def test_errors_of_handlers_become_their_status(path: str) -> None:
    desk = Desk.open()
    caller = desk.caller()
    desk.table.error = LimitReachedError("calls_max", 5)
    first = caller.call(path)
    await settle()
    desk.table.error = refusal("nothing here", StatusCode.NOT_FOUND)
    second = caller.call(path)
    await settle()

    assert statuses(caller, [first, second]) == [
        StatusCode.RESOURCE_EXHAUSTED,
        StatusCode.NOT_FOUND,
    ]
    assert caller.answer(first).text.startswith(f"[{LimitReachedError.code}] ")
    assert caller.answer(second).text == "nothing here"


@pytest.mark.parametrize("path", ["/t/Raise", "/t/DirectBug"])
async def test_bug_costs_its_call_and_is_logged_once_a_second(path: str) -> None:
    desk = Desk.open()
    caller = desk.caller()
    with capture_logs() as lines:
        calls = [caller.call(path) for _ in range(3)]
        await settle()
        assert [line["event"] for line in lines] == ["internal_error"]
        await desk.pass_time(1.0)
        calls.append(caller.call(path))
        await settle()

    assert statuses(caller, calls) == [StatusCode.INTERNAL] * 4
    assert "a bug in the broker" in caller.answer(calls[0]).text
    assert [line["times"] for line in lines] == [1, 3]
    assert lines[0]["method"] == path[1:]
    assert caller.answer(caller.call()).status == StatusCode.OK


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("plain text, with ~ and !", b"plain text, with ~ and !"),
        ("100 %", b"100 %25"),
        ("a\r\nb\0\x7f", b"a%0D%0Ab%00%7F"),
        ("für 日本", b"f%C3%BCr %E6%97%A5%E6%9C%AC"),
        ("\ud800", b"?"),
    ],
)
async def test_text_of_a_status_is_percent_encoded(text: str, expected: bytes) -> None:
    desk = Desk.open()
    caller = desk.caller()
    desk.table.error = refusal(text)

    answer = caller.answer(caller.call("/t/DirectBug"))

    assert answer.trailers["grpc-message"].encode() == expected == encode_text(text)


async def test_longest_text_of_a_status_fits_into_the_headers_that_clients_accept() -> None:
    desk = Desk.open()
    caller = desk.caller()
    desk.table.error = refusal("\U0001f600" * 2_000)

    answer = caller.answer(caller.call("/t/DirectBug"))

    assert answer.text == "\U0001f600" * DETAILS_MAX
    assert len(answer.trailers["grpc-message"]) < 8_000


# Tokens


@pytest.mark.parametrize(
    ("extra", "reason"),
    [
        ((), NO_TOKEN),
        (((b"authorization", b"Bearer " + OTHER.encode()),), UNKNOWN_TOKEN),
        (((b"authorization", TOKEN.encode()),), NO_TOKEN),
        (((b"authorization", b"Bearer \xff\xfe"),), UNKNOWN_TOKEN),
    ],
)
async def test_call_without_a_known_token_is_unauthenticated(
    tokens: Path, extra: tuple[tuple[bytes, bytes], ...], reason: str
) -> None:
    desk = Desk.open(tokens=tokens)
    caller = desk.caller()
    with capture_logs():
        answers = [caller.answer(caller.call(path, *extra)) for path in ("/t/Echo", "/t/Nothing")]

    assert [answer.status for answer in answers] == [StatusCode.UNAUTHENTICATED] * 2
    assert reason in answers[0].text
    assert "authorization: Bearer TOKEN" in answers[0].text
    assert desk.table.requests == []


async def test_call_with_a_token_is_answered(tokens: Path) -> None:
    caller = Desk.open(tokens=tokens).caller()

    assert caller.answer(caller.call("/t/Echo", AUTHORIZED)).status == StatusCode.OK


async def test_revoked_token_ends_calls_that_are_under_way(tokens: Path) -> None:
    desk = Desk.open(tokens=tokens)
    caller = desk.caller()
    stream = caller.call("/t/Endless", AUTHORIZED)
    unary = caller.call("/t/Slow", AUTHORIZED)
    half = caller.call("/t/Echo", AUTHORIZED, ended=False)
    await settle()
    tokens.write_text(f"billing {OTHER}\n")

    with capture_logs():
        await desk.pass_time(1.0)
        caller.send(http2.window_update(0, MIB), http2.window_update(stream, MIB))

    assert statuses(caller, [stream, unary, half]) == [StatusCode.UNAUTHENTICATED] * 3
    assert all(TOKEN_GONE in caller.answer(one).text for one in (stream, unary, half))
    assert sorted(desk.table.cancelled) == ["endless", "slow"]


async def test_call_whose_token_stays_goes_on_when_another_is_revoked(tokens: Path) -> None:
    tokens.write_text(f"billing {TOKEN}\nreports {OTHER}\n")
    desk = Desk.open(tokens=tokens)
    caller = desk.caller()
    stream_id = caller.call("/t/Slow", AUTHORIZED)
    tokens.write_text(f"billing {TOKEN}\n")

    with capture_logs():
        await desk.pass_time(1.0)

    assert caller.answer(stream_id).status is None


# Deadlines


async def test_deadline_ends_a_call_that_runs() -> None:
    desk = Desk.open()
    caller = desk.caller()
    slow = caller.call("/t/Slow", (b"grpc-timeout", b"500m"))
    later = caller.call("/t/Later", (b"grpc-timeout", b"500m"))
    desk.clock.advance(0.499)
    await settle()
    assert statuses(caller, [slow, later]) == [None, None]

    desk.clock.advance(0.001)
    await settle()

    assert statuses(caller, [slow, later]) == [StatusCode.DEADLINE_EXCEEDED] * 2
    assert desk.table.cancelled == ["slow"]
    desk.table.replies[0](b"too late")
    assert caller.answer(later).messages == []


async def test_deadline_ends_a_call_whose_request_is_not_complete() -> None:
    desk = Desk.open()
    caller = desk.caller()
    stream_id = caller.call(
        "/t/Echo", (b"grpc-timeout", b"2S"), body=message(b"hello")[:7], ended=False
    )
    await desk.pass_time(1.999)
    assert caller.answer(stream_id).status is None

    await desk.pass_time(0.001)

    assert caller.answer(stream_id).status == StatusCode.DEADLINE_EXCEEDED
    assert desk.server._buffered_bytes == 0


async def test_deadline_that_is_over_keeps_a_call_from_its_handler() -> None:
    desk = Desk.open()
    caller = desk.caller()
    at_once = caller.call("/t/Echo", (b"grpc-timeout", b"0S"))
    late = caller.call("/t/Echo", (b"grpc-timeout", b"1m"), body=b"", ended=False)
    desk.clock.advance(0.001)

    caller.send(http2.data(late, message(), END_STREAM))

    assert statuses(caller, [at_once, late]) == [StatusCode.DEADLINE_EXCEEDED] * 2
    assert desk.table.requests == []


async def test_call_that_was_answered_in_time_has_no_deadline_left() -> None:
    desk = Desk.open()
    caller = desk.caller()
    stream_id = caller.call("/t/Later", (b"grpc-timeout", b"1S"))
    desk.table.replies[0](b"in time")

    await desk.pass_time(2.0)

    assert caller.answer(stream_id).status == StatusCode.OK


async def test_longest_deadline_is_accepted() -> None:
    caller = Desk.open().caller()

    stream_id = caller.call("/t/Later", (b"grpc-timeout", b"99999999H"))

    assert caller.answer(stream_id).status is None


async def test_timeout_that_is_not_one_is_refused() -> None:
    caller = Desk.open().caller()

    stream_id = caller.call("/t/Echo", (b"grpc-timeout", b"soon"))

    assert caller.answer(stream_id).status == StatusCode.INVALID_ARGUMENT


# Cancellation


async def test_reset_cancels_the_task_of_a_call() -> None:
    desk = Desk.open()
    caller = desk.caller()
    stream_id = caller.call("/t/Slow")
    await settle()

    caller.send(http2.reset(stream_id))
    await settle()

    assert desk.table.cancelled == ["slow"]
    assert caller.session.is_idle
    assert caller.answer(stream_id).status is None


async def test_call_that_is_reset_in_the_same_read_does_not_begin() -> None:
    desk = Desk.open()
    caller = desk.caller()
    stream_id, head = caller.headers("/t/Slow")

    caller.send(head, http2.data(stream_id, message(), END_STREAM), http2.reset(stream_id))
    await settle()

    assert desk.table.requests == []
    assert caller.session.is_idle


async def test_answer_to_a_call_that_was_reset_is_dropped() -> None:
    desk = Desk.open()
    caller = desk.caller()
    stream_id = caller.call("/t/Later")
    caller.send(http2.reset(stream_id))

    desk.table.replies[0](b"too late")
    await settle()

    assert caller.answer(stream_id).headers == {}


async def test_lost_connection_cancels_its_calls() -> None:
    desk = Desk.open()
    caller = desk.caller()
    caller.call("/t/Slow")
    caller.call("/t/Endless")
    caller.call(body=message(b"hello")[:7], ended=False)
    await settle()

    caller.session.connection_lost(None)
    await settle()

    assert sorted(desk.table.cancelled) == ["endless", "slow"]
    assert desk.server.sessions == set()
    assert desk.server._buffered_bytes == 0


async def test_broken_stream_costs_its_call_only() -> None:
    desk = Desk.open()
    caller = desk.caller()
    slow, other = caller.call("/t/Slow"), caller.call("/t/Later")
    await settle()

    caller.send(http2.window_update(slow, 0))
    desk.table.replies[0](b"fine")
    await settle()

    assert desk.table.cancelled == ["slow"]
    assert caller.answer(slow).reset == ErrorCode.PROTOCOL_ERROR
    assert caller.answer(other).messages == [b"fine"]
