"""Connections of the gRPC server: who makes room, who is ended and when, and how it closes."""

import asyncio

from structlog.testing import capture_logs
from tests.unit.server.grpc.caller import Caller, Desk, message, statuses
from tests.unit.server.http2 import peer as http2
from tests.unit.server.http2.peer import ACK, END_STREAM, INITIAL_WINDOW_SIZE, PING, frame

from ister.base.limits import MIB
from ister.server.grpc.calls.server import (
    GOODBYE_MS_MAX,
    HALF_CLOSED_MAX,
    HANDSHAKE_MS_MAX,
    IDLE_MS_MAX,
    KEEPALIVE_MS,
    KEEPALIVE_TIMEOUT_MS,
    REQUEST_MS_MAX,
)
from ister.server.grpc.calls.session import AFTER_END_BYTES_MAX
from ister.server.grpc.calls.status import StatusCode
from ister.server.http2 import ErrorCode
from ister.testing.clock import settle


def pings(caller: Caller) -> int:
    """Return how often the server has asked for a sign of life."""
    caller.read()
    return sum(one.type == PING and not one.flags & ACK for one in caller.frames)


# Strangers


async def test_oldest_connection_without_a_call_makes_room() -> None:
    desk = Desk.open(handshakes_max=2)
    known = desk.caller()
    known.call()
    strangers = [desk.caller() for _ in range(2)]

    with capture_logs():
        strangers.append(desk.caller())
    await settle()

    assert [one.transport.closed for one in (known, *strangers)] == [False, True, False, False]
    gone = strangers[0].gone_away()
    assert gone is not None
    assert gone.code == ErrorCode.ENHANCE_YOUR_CALM


async def test_stranger_makes_room_when_there_are_too_many_connections() -> None:
    desk = Desk.open(connections_max=2)
    stranger, known = desk.caller(), desk.caller()
    known.call()

    with capture_logs():
        newest = desk.caller()
    await settle()

    assert stranger.transport.closed
    assert newest.answer(newest.call()).status == StatusCode.OK
    assert len(desk.server.sessions) == 2


async def test_connection_beyond_the_limit_is_refused_when_all_others_are_known() -> None:
    desk = Desk.open(connections_max=2)
    known = [desk.caller() for _ in range(2)]
    for one in known:
        one.call()

    with capture_logs() as lines:
        newest = desk.caller(hello=False)
    await settle()

    assert newest.transport.closed
    assert newest.gone_away() is not None
    assert "more than 2 connections" in lines[0]["error"]
    assert not any(one.transport.closed for one in known)


async def test_call_that_is_refused_does_not_make_a_stranger_known() -> None:
    desk = Desk.open(handshakes_max=1)
    first = desk.caller()
    first.call("/t/Nothing")
    first.call(method=b"GET")
    first.call(body=b"")

    with capture_logs():
        desk.caller()

    assert first.transport.closed


# Handshakes, idle and dead connections


async def test_connection_that_says_nothing_is_ended() -> None:
    desk = Desk.open()
    caller = desk.caller(hello=False)
    caller.send(http2.PREFACE)
    await desk.pass_time(HANDSHAKE_MS_MAX / 1000 - 0.001)
    assert not caller.transport.closed

    with capture_logs():
        await desk.pass_time(0.001)

    gone = caller.gone_away()
    assert gone is not None
    assert gone.code == ErrorCode.SETTINGS_TIMEOUT
    assert desk.server.sessions == set()


async def test_connection_without_a_call_is_ended_after_a_while() -> None:
    desk = Desk.open()
    caller = desk.caller()
    desk.clock.advance(5.0)
    caller.call()
    await desk.pass_seconds(IDLE_MS_MAX // 1000 - 1, caller)
    before = caller.transport.closed

    await desk.pass_time(1.0)

    gone = caller.gone_away()
    assert gone is not None
    assert gone.code == ErrorCode.NO_ERROR
    assert (before, caller.transport.closed) == (False, True)
    assert not caller.transport.aborted


async def test_connection_with_a_call_under_way_is_not_idle() -> None:
    desk = Desk.open()
    caller = desk.caller()
    stream_id = caller.call("/t/Slow")

    await desk.pass_seconds(2 * IDLE_MS_MAX // 1000, caller)

    assert caller.gone_away() is None
    assert caller.answer(stream_id).status is None


async def test_quiet_client_is_asked_for_a_sign_of_life_and_ended_without_one() -> None:
    desk = Desk.open()
    caller = desk.caller()
    caller.call("/t/Slow")
    await desk.pass_time(KEEPALIVE_MS / 1000 - 0.001)
    assert pings(caller) == 0
    await desk.pass_time(0.001)
    assert pings(caller) == 1
    await desk.pass_time(KEEPALIVE_TIMEOUT_MS / 1000 - 0.001)
    before = caller.transport.aborted

    with capture_logs() as lines:
        await desk.pass_time(0.001)

    assert (before, caller.transport.aborted) == (False, True)
    assert [line["event"] for line in lines] == ["client_dead"]
    assert desk.table.cancelled == ["slow"]


async def test_sign_of_life_keeps_a_quiet_client() -> None:
    desk = Desk.open()
    caller = desk.caller()
    caller.call("/t/Slow")
    for count in range(1, 6):
        await desk.pass_time(KEEPALIVE_MS / 1000)
        assert pings(caller) == count
        # On a fast network it comes in the same millisecond.
        caller.send(frame(PING, ACK, 0, b"is there"))
        await desk.pass_time(KEEPALIVE_TIMEOUT_MS / 1000)

    assert not caller.transport.closed


async def test_anything_a_client_says_is_a_sign_of_life() -> None:
    desk = Desk.open()
    caller = desk.caller()
    caller.call("/t/Slow")
    await desk.pass_time(KEEPALIVE_MS / 1000)

    desk.clock.advance(1.0)
    caller.send(http2.window_update(0, 1))
    await desk.pass_time(KEEPALIVE_TIMEOUT_MS / 1000)

    assert not caller.transport.closed


async def test_request_that_never_completes_is_cancelled() -> None:
    desk = Desk.open()
    caller = desk.caller()
    stream_id = caller.call(body=message(b"hello")[:7], ended=False)
    await desk.pass_seconds(REQUEST_MS_MAX // 1000 - 1, caller)
    caller.send(http2.data(stream_id, b"l"))
    await desk.pass_seconds(REQUEST_MS_MAX // 1000 - 1, caller)
    assert caller.answer(stream_id).status is None

    await desk.pass_seconds(1, caller)

    assert caller.answer(stream_id).status == StatusCode.CANCELLED
    assert desk.server._buffered_bytes == 0


async def test_failed_connection_whose_peer_does_not_read_is_cut_off() -> None:
    desk = Desk.open()
    caller = desk.caller()
    caller.call("/t/Slow")
    await settle()
    # What the socket has not taken keeps `close` waiting.
    caller.transport.stuck = True
    with capture_logs() as lines:
        caller.send(http2.data(99, b"x"))
        await desk.pass_time(HANDSHAKE_MS_MAX / 1000)

    assert caller.transport.aborted
    assert desk.server.sessions == set()
    assert desk.table.cancelled == ["slow"]
    assert desk.server.counts.refused == len(lines) == 1


# Closing


# Connections of which our half has ended, and the client's has not


def end_stubborn(desk: Desk) -> Caller:
    """Return a client whose connection has been ended, and who keeps its own half."""
    caller = desk.caller()
    caller.transport.stubborn = True
    caller.call()
    caller.session.close()
    return caller


async def test_nothing_that_comes_after_the_end_is_acted_on() -> None:
    desk = Desk.open()
    caller = end_stubborn(desk)
    caller.read()

    caller.call(body=message(b"late"))
    caller.send(frame(PING, 0, 0, bytes(8)), b"no frame at all")
    await settle()

    assert desk.table.requests == [b""]
    assert caller.read() == []
    assert not caller.transport.closed


async def test_connection_without_a_call_is_closed_without_waiting_for_its_client() -> None:
    caller = Desk.open().caller()
    caller.transport.stubborn = True

    caller.session.close()

    assert caller.transport.closed


async def test_client_that_does_not_end_its_half_is_cut_off_after_a_while() -> None:
    desk = Desk.open()
    caller = end_stubborn(desk)

    await desk.pass_time(GOODBYE_MS_MAX / 1000 - 0.001)
    assert not caller.transport.closed
    await desk.pass_time(0.001)

    assert caller.transport.aborted
    assert not desk.server.sessions


async def test_client_that_sends_too_much_after_the_end_is_cut_off() -> None:
    caller = end_stubborn(Desk.open())

    caller.send(bytes(AFTER_END_BYTES_MAX))
    assert not caller.transport.aborted
    caller.send(b"x")

    assert caller.transport.aborted


async def test_oldest_of_too_many_that_do_not_end_their_half_is_closed() -> None:
    desk = Desk.open(connections_max=1)
    callers = [end_stubborn(desk) for _ in range(HALF_CLOSED_MAX + 1)]
    await settle()

    assert [one.transport.closed for one in callers] == [True] + [False] * HALF_CLOSED_MAX
    # They are in nobody's way.
    newest = desk.caller()
    assert newest.answer(newest.call()).status == StatusCode.OK


async def closing(desk: Desk, deadline_s: float = 5.0) -> "asyncio.Task[None]":
    """Begin to close the server."""
    task = asyncio.create_task(desk.server.close(deadline_s))
    await settle()
    return task


async def test_server_without_calls_closes_at_once() -> None:
    desk = Desk.open()
    caller = desk.caller()

    task = await closing(desk)

    assert task.done()
    gone = caller.gone_away()
    assert gone is not None
    assert gone.code == ErrorCode.NO_ERROR
    assert caller.transport.closed
    assert not caller.transport.aborted


async def test_calls_under_way_are_answered_while_the_server_closes_and_others_refused() -> None:
    desk = Desk.open()
    caller = desk.caller()
    stream_id = caller.call("/t/Later")
    task = await closing(desk)

    late = caller.call()
    assert caller.answer(late).reset == ErrorCode.REFUSED_STREAM
    assert not task.done()
    desk.table.replies[0](b"fine")
    await settle()

    assert caller.answer(stream_id).messages == [b"fine"]
    assert task.done()
    assert not caller.transport.aborted


async def test_answer_that_waits_for_the_window_is_sent_before_the_connection_closes() -> None:
    desk = Desk.open()
    caller = desk.caller()
    caller.send(http2.settings((INITIAL_WINDOW_SIZE, 3)))
    stream_id = caller.call(body=message(b"hello"))
    task = await closing(desk)
    assert not task.done()

    caller.send(http2.window_update(stream_id, 100))
    await settle()

    assert caller.answer(stream_id).messages == [b"hello"]
    assert caller.answer(stream_id).status == StatusCode.OK
    assert task.done()


async def test_request_that_is_half_here_is_answered_while_the_server_closes() -> None:
    desk = Desk.open()
    caller = desk.caller()
    body = message(b"hello")
    stream_id = caller.call(body=body[:7], ended=False)
    task = await closing(desk)

    caller.send(http2.data(stream_id, body[7:], END_STREAM))
    await settle()

    assert caller.answer(stream_id).messages == [b"hello"]
    assert task.done()


async def test_frames_that_wait_for_their_turn_are_read_while_the_server_closes() -> None:
    now_ns = 0

    def tick() -> int:
        nonlocal now_ns
        now_ns += 3_000_000
        return now_ns

    desk = Desk.open(now_ns=tick)
    caller = desk.caller()
    body = message(bytes(40))
    stream_id = caller.call(body=body[:1], ended=False)
    rest = [http2.data(stream_id, body[place : place + 1]) for place in range(1, len(body))]
    caller.send(*rest, http2.data(stream_id, b"", END_STREAM))
    assert desk.table.requests == []

    task = await closing(desk)

    assert caller.answer(stream_id).messages == [bytes(40)]
    assert task.done()


async def test_waiting_stream_that_is_given_up_does_not_keep_the_server_from_closing() -> None:
    desk = Desk.open()
    caller = desk.caller()
    caller.send(http2.settings((INITIAL_WINDOW_SIZE, 0)))
    stream_id = caller.call("/t/Endless")
    await settle()
    task = await closing(desk)

    caller.send(http2.reset(stream_id))
    await settle()

    assert task.done()


async def test_calls_that_are_not_answered_by_the_deadline_are_unavailable() -> None:
    desk = Desk.open()
    caller = desk.caller()
    calls = [caller.call("/t/Slow"), caller.call("/t/Later"), caller.call(ended=False)]
    task = await closing(desk, deadline_s=5.0)
    desk.clock.advance(4.999)
    await settle()
    assert statuses(caller, calls) == [None] * 3

    desk.clock.advance(0.001)
    await settle()

    assert statuses(caller, calls) == [StatusCode.UNAVAILABLE] * 3
    assert task.done()
    assert desk.server.sessions == set()
    assert desk.table.cancelled == ["slow"]
    # A socket of uvloop forgets at `abort` what was written in the same turn.
    assert not caller.transport.aborted


async def test_peer_that_does_not_read_is_cut_off_at_the_deadline() -> None:
    desk = Desk.open()
    caller = desk.caller()
    caller.send(http2.window_update(0, MIB))
    caller.call("/t/Slow")
    caller.session.pause_writing()
    task = await closing(desk, deadline_s=1.0)

    desk.clock.advance(1.0)
    await settle()

    assert task.done()
    assert desk.server.sessions == set()


async def test_client_with_the_most_calls_makes_room_when_there_are_too_many() -> None:
    desk = Desk.open()
    desk.server.calls_max = 5
    honest, greedy = desk.caller(), desk.caller()
    honest.call("/t/Slow")
    for _ in range(5):
        greedy.call("/t/Slow")
    await settle()

    assert greedy.gone_away() is not None
    assert honest.session.ended_ms is None
    assert desk.server.calls_count == 1
