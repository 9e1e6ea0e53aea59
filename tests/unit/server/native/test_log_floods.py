"""However many connections cause an event, the log has one line of it a second, with a count."""

from collections.abc import Iterable, MutableMapping
from typing import Any

from structlog.testing import capture_logs
from tests.fuzz.world import NotingTransport
from tests.unit.server.native.test_session import End
from tests.unit.server.native.test_timelines import TOPIC, TimelineEnd, consume

from ister.base.limits import DRIFT_US_MAX, HEARTBEAT_MS
from ister.server.native.timelines import TimelineOutlet
from ister.wire import CreateTopic

COUNT = 20


def times_of(logs: Iterable[MutableMapping[str, Any]], event: str) -> list[int]:
    """Return how often each line of an event says that the event happened."""
    return [line["times"] for line in logs if line["event"] == event]


def send_garbage(end: End) -> None:
    session = end.door.session()
    session.connection_made(NotingTransport())
    session.data_received(b"no frame" * 10)


async def test_refused_clients_do_not_fill_the_log() -> None:
    end = TimelineEnd()
    with capture_logs() as logs:
        for _ in range(COUNT):
            send_garbage(end)
        first = times_of(logs, "client_refused")
        end.clock.advance(1.0)
        send_garbage(end)

    assert first == [1]
    assert times_of(logs, "client_refused") == [1, COUNT]


async def test_failed_handshakes_do_not_fill_the_log() -> None:
    end = TimelineEnd()
    with capture_logs() as logs:
        for _ in range(COUNT):
            end.door._on_handshake_failed("1.2.3.4:5", "no TLS")

    assert times_of(logs, "client_refused") == [1]


async def test_dead_clients_do_not_fill_the_log() -> None:
    end = TimelineEnd()
    for _ in range(COUNT):
        End(end.door)
    with capture_logs() as logs:
        end.clock.advance(10 * HEARTBEAT_MS / 1_000)

    # Their connections stay, because this transport does not close: one line in each second.
    assert times_of(logs, "client_dead")[:2] == [1, COUNT + 1]


async def test_clocks_that_differ_do_not_fill_the_log() -> None:
    end = TimelineEnd()
    await end.ask(CreateTopic(topic=TOPIC, kind="timeline"))
    await end.ask(consume())
    consumer = end.session.timelines.consumers[9]
    with capture_logs() as logs:
        for _ in range(COUNT):
            outlet = TimelineOutlet(end.session)
            outlet.add(1, consumer)
            outlet.on_drift(DRIFT_US_MAX + 1)

    assert times_of(logs, "clock_drift") == [1]
