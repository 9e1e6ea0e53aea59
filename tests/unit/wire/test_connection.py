"""One end of a connection: its states, its heart, its greeting."""

import pytest

from ister.base.errors import ProtocolError, VersionError
from ister.wire import (
    Command,
    Connection,
    Done,
    Frame,
    Hello,
    Opcode,
    Pulse,
    State,
    accept_hello,
    control_frame,
    credit_frame,
)
from ister.wire.frames import ping_frame, pong_frame

HEARTBEAT_MS = 1_000


def greeting() -> Connection:
    return Connection(now_ms=0, heartbeat_ms=HEARTBEAT_MS)


def opened() -> Connection:
    connection = greeting()
    connection.opened(batch_bytes_max=65_536)
    return connection


def test_a_new_connection_waits_for_a_greeting() -> None:
    assert greeting().state is State.GREETING


def test_before_the_greeting_a_hot_frame_closes_the_connection() -> None:
    connection = greeting()
    with pytest.raises(ProtocolError):
        connection.receive(credit_frame(1, 1, 1))

    assert connection.state is State.CLOSED


def test_an_open_connection_takes_hot_frames() -> None:
    assert len(opened().receive(credit_frame(1, 1, 1))) == 1


def test_a_broken_frame_closes_the_connection() -> None:
    connection = opened()
    with pytest.raises(ProtocolError):
        connection.receive(bytes(16))

    assert connection.state is State.CLOSED


def test_a_closed_connection_ignores_what_comes() -> None:
    connection = opened()
    connection.close()

    assert connection.receive(credit_frame(1, 1, 1)) == []


def test_a_closed_connection_queues_nothing_more() -> None:
    connection = opened()
    connection.send(b"before")
    connection.close()
    connection.send(b"after")
    connection.send_all([b"after"])

    assert connection.outgoing() == [b"before"]


def test_what_is_to_be_sent_is_returned_once_and_in_order() -> None:
    connection = opened()
    connection.send(b"a")
    connection.send_all([b"b", b"c"])

    assert (connection.outgoing(), connection.outgoing()) == ([b"a", b"b", b"c"], [])


def test_a_ping_is_answered_and_not_passed_on() -> None:
    connection = opened()

    assert (connection.receive(ping_frame()), connection.outgoing()) == ([], [pong_frame()])


def test_several_pings_at_once_are_answered_by_one_pong() -> None:
    connection = opened()
    connection.receive(ping_frame() * 3)

    assert connection.outgoing() == [pong_frame()]


def test_a_pong_is_not_answered() -> None:
    connection = opened()

    assert (connection.receive(pong_frame()), connection.outgoing()) == ([], [])


def test_beats_between_other_frames_are_taken_out() -> None:
    frames = opened().receive(credit_frame(1, 1, 1) + ping_frame() + credit_frame(2, 1, 1))

    assert [frame[1] for frame in frames] == [1, 2]


@pytest.mark.parametrize(
    ("now_ms", "sent"),
    [(HEARTBEAT_MS - 1, []), (HEARTBEAT_MS, [ping_frame()]), (HEARTBEAT_MS + 1, [ping_frame()])],
)
def test_a_ping_is_sent_after_each_heartbeat(now_ms: int, sent: list[bytes]) -> None:
    connection = opened()
    connection.pulse(now_ms)

    assert connection.outgoing() == sent


def test_pings_are_a_heartbeat_apart() -> None:
    connection = opened()
    connection.pulse(HEARTBEAT_MS)
    connection.pulse(2 * HEARTBEAT_MS - 1)

    assert connection.outgoing() == [ping_frame()]


def test_no_ping_is_sent_before_the_greeting() -> None:
    connection = greeting()
    connection.pulse(HEARTBEAT_MS)

    assert connection.outgoing() == []


@pytest.mark.parametrize(
    ("now_ms", "pulse"),
    [
        (3 * HEARTBEAT_MS - 1, Pulse.FINE),
        (3 * HEARTBEAT_MS, Pulse.DEAD),
        (3 * HEARTBEAT_MS + 1, Pulse.DEAD),
    ],
)
def test_a_peer_is_dead_after_three_heartbeats_without_a_frame(now_ms: int, pulse: Pulse) -> None:
    assert opened().pulse(now_ms) is pulse


def test_any_whole_frame_proves_life() -> None:
    connection = opened()
    connection.receive(credit_frame(1, 1, 1))
    connection.pulse(2 * HEARTBEAT_MS)

    assert connection.pulse(5 * HEARTBEAT_MS - 1) is Pulse.FINE


def test_a_pong_proves_life() -> None:
    connection = opened()
    connection.receive(pong_frame())
    connection.pulse(2 * HEARTBEAT_MS)

    assert connection.pulse(4 * HEARTBEAT_MS) is Pulse.FINE


def test_a_peer_that_trickles_bytes_is_as_dead_as_a_silent_one() -> None:
    connection = opened()
    frame = control_frame(Done())
    for second in range(3):
        connection.receive(frame[second : second + 1])
        connection.pulse(second * HEARTBEAT_MS)

    assert connection.pulse(3 * HEARTBEAT_MS) is Pulse.DEAD


def frame_of(command: Command) -> Frame:
    return (Opcode.CONTROL, 0, 1, memoryview(control_frame(command))[16:])


@pytest.mark.parametrize(("lowest", "highest"), [(1, 1), (0, 1), (1, 2), (-5, 100)])
def test_the_highest_common_version_is_spoken(lowest: int, highest: int) -> None:
    hello = Hello(client_id="c", version_min=lowest, version_max=highest)

    assert accept_hello(frame_of(hello)) == (hello, 1)


@pytest.mark.parametrize(("lowest", "highest"), [(2, 3), (0, 0), (2, 1), (2**62, 2**62)])
def test_no_common_version_is_an_error_that_names_both_sides(lowest: int, highest: int) -> None:
    hello = Hello(client_id="c", version_min=lowest, version_max=highest)

    with pytest.raises(VersionError, match=f"{lowest}-{highest}.*1-1"):
        accept_hello(frame_of(hello))


def test_another_command_is_no_greeting() -> None:
    with pytest.raises(ProtocolError, match="must be a hello"):
        accept_hello(frame_of(Done()))


def test_a_client_without_an_id_is_refused() -> None:
    with pytest.raises(ProtocolError, match="id of its own"):
        accept_hello(frame_of(Hello(client_id="")))
