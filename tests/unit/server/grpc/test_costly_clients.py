"""What one client may cost the gRPC server: memory, time and patience have their limits."""

import asyncio
from collections.abc import Callable

import pytest
from structlog.testing import capture_logs
from tests.unit.server.grpc.caller import Caller, Desk, message
from tests.unit.server.http2 import peer as http2
from tests.unit.server.http2.peer import END_STREAM, INITIAL_WINDOW_SIZE

from ister.base.limits import MIB
from ister.server.grpc.calls.session import MISTAKES_MAX, PENDING_BYTES_MAX
from ister.server.http2 import ErrorCode
from ister.testing.clock import settle


async def test_stream_writes_no_more_than_the_window_of_its_client() -> None:
    desk = Desk.open()
    caller = desk.caller()
    stream_id = caller.call("/t/Endless")
    await settle()
    before = desk.table.written
    assert before == 66

    caller.send(http2.window_update(stream_id, 4_000), http2.window_update(0, 4_000))
    await settle()

    assert desk.table.written == before + 4


async def test_client_that_does_not_read_is_not_read_from_and_its_streams_wait() -> None:
    desk = Desk.open()
    caller = desk.caller()
    caller.session.pause_writing()
    before = caller.transport.reading
    caller.call("/t/Endless")
    await settle()
    assert desk.table.written == 0

    caller.session.resume_writing()
    await settle()

    assert (before, caller.transport.reading) == (False, True)
    assert desk.table.written > 0


async def test_stream_goes_on_when_the_one_that_filled_the_buffer_is_reset() -> None:
    desk = Desk.open()
    caller = desk.caller()
    caller.send(http2.window_update(0, 2**30))
    full = caller.call("/t/Large", body=message(b"%d" % (17 * MIB)))
    caller.call("/t/Endless")
    await settle()
    assert desk.table.written == 0

    caller.send(http2.reset(full))
    await settle()

    assert desk.table.written > 0


async def test_stream_that_is_given_up_while_it_waits_leaves_nothing_behind() -> None:
    desk = Desk.open()
    caller = desk.caller()
    caller.send(http2.settings((INITIAL_WINDOW_SIZE, 0)))
    stream_id = caller.call("/t/Endless")
    await settle()
    assert caller.session._blocked

    caller.send(http2.reset(stream_id))
    await settle()

    assert caller.session._blocked == {}
    assert caller.session.connection.out.pending_bytes == 0


async def test_client_that_asks_and_does_not_take_the_answers_is_ended() -> None:
    desk = Desk.open()
    caller = desk.caller()
    with capture_logs():
        while caller.gone_away() is None:
            caller.call("/t/Large", body=message(b"%d" % (4 * MIB)))
            pending_bytes = caller.session.connection.out.pending_bytes
            assert pending_bytes <= PENDING_BYTES_MAX + 4 * MIB
    await settle()

    gone = caller.gone_away()
    assert gone is not None
    assert gone.code == ErrorCode.ENHANCE_YOUR_CALM
    assert desk.server.sessions == set()


async def rapid_reset(caller: Caller) -> None:
    stream_id, head = caller.headers("/t/Slow")
    caller.send(head, http2.reset(stream_id))


async def wrong_stream(caller: Caller) -> None:
    stream_id, head = caller.headers("/t/Slow")
    caller.send(head, http2.window_update(stream_id, 0))


async def wrong_verb(caller: Caller) -> None:
    caller.call(method=b"GET")


@pytest.mark.parametrize("mistake", [rapid_reset, wrong_stream, wrong_verb])
async def test_client_that_makes_mistakes_all_the_time_is_ended_and_hears_why(
    mistake: Callable[[Caller], "asyncio.Future[None]"],
) -> None:
    desk = Desk.open()
    caller = desk.caller()
    with capture_logs():
        for _ in range(MISTAKES_MAX):
            await mistake(caller)
        assert caller.gone_away() is None

        await mistake(caller)
        await settle()

    gone = caller.gone_away()
    assert gone is not None
    assert gone.code == ErrorCode.ENHANCE_YOUR_CALM
    assert desk.server.sessions == set()


async def test_answered_calls_may_be_reset_as_often_as_one_likes() -> None:
    caller = Desk.open().caller()
    for _ in range(MISTAKES_MAX + 10):
        caller.send(http2.reset(caller.call()))

    assert caller.gone_away() is None


async def test_mistakes_are_forgotten_after_a_minute() -> None:
    desk = Desk.open()
    caller = desk.caller()
    caller.call("/t/Slow")
    for _ in range(MISTAKES_MAX):
        await rapid_reset(caller)

    await desk.pass_seconds(60, caller)
    await rapid_reset(caller)

    assert caller.gone_away() is None


async def test_unfinished_requests_beyond_the_limit_end_the_client_that_has_most(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("ister.server.grpc.calls.server.BUFFERED_BYTES_MAX", 1_000)
    desk = Desk.open()
    small, large = desk.caller(), desk.caller()
    large.call(body=b"\0\0\0\x10\0" + bytes(800), ended=False)

    with capture_logs():
        stream_id = small.call(body=b"\0\0\0\x10\0" + bytes(300), ended=False)
    await settle()

    gone = large.gone_away()
    assert gone is not None
    assert gone.code == ErrorCode.ENHANCE_YOUR_CALM
    assert small.gone_away() is None
    assert desk.server._buffered_bytes == 305
    small.send(http2.reset(stream_id))
    assert desk.server._buffered_bytes == 0


async def test_long_read_is_dealt_with_in_several_turns() -> None:
    now_ns = 0

    def tick() -> int:
        nonlocal now_ns
        now_ns += 3_000_000
        return now_ns

    desk = Desk.open(now_ns=tick)
    caller = desk.caller()
    pairs = [caller.headers() for _ in range(20)]
    body = [head + http2.data(one, message(), END_STREAM) for one, head in pairs]

    caller.send(*body)
    assert len(desk.table.requests) < len(pairs)
    assert not caller.transport.reading
    await settle()

    assert len(desk.table.requests) == len(pairs)
    assert caller.transport.reading


async def test_broken_frame_ends_the_connection_and_its_calls() -> None:
    desk = Desk.open()
    caller = desk.caller()
    caller.call("/t/Slow")
    await settle()

    with capture_logs() as lines:
        caller.send(http2.data(99, b"x"))
        await settle()

    gone = caller.gone_away()
    assert gone is not None
    assert gone.code == ErrorCode.PROTOCOL_ERROR
    assert desk.table.cancelled == ["slow"]
    assert [line["event"] for line in lines] == ["client_refused"]
