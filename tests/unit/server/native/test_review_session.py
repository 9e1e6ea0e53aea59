"""What one connection may cost a broker whose journal is slow."""

import pytest
from tests.fuzz.world import NotingTransport
from tests.unit.broker.streambench import StreamBench

from ister.base.errors import LimitReachedError, TransactionError
from ister.base.limits import TRANSACTION_BYTES_MAX
from ister.broker.storage.committer import COMMITTING_BYTES_MAX
from ister.codec import encode
from ister.server.native import NativeDoor, NativeSession
from ister.server.native import streams as native_streams
from ister.wire import (
    AbortTransaction,
    BeginTransaction,
    CommitTransaction,
    Frame,
    Hello,
    Opcode,
    Subscribe,
    control_frame,
)
from ister.wire.frames import FrameReader, body_limits

TOPIC = "/default/orders"


class CountingTransport(NotingTransport):
    """Knows whether it is read from."""

    reading = True

    def pause_reading(self) -> None:
        self.reading = False

    def resume_reading(self) -> None:
        self.reading = True


class End:
    """A session with a greeted client, at a broker with one stream."""

    def __init__(self, bench: StreamBench, door: NativeDoor) -> None:
        self.bench = bench
        self.session: NativeSession = door.session()
        self.transport = CountingTransport()
        self.session.connection_made(self.transport)
        self.session.data_received(control_frame(Hello(client_id="c")))
        self.reader = FrameReader(body_limits(1 << 25))
        self.sent()

    def sent(self) -> list[Frame]:
        data = bytes(self.transport.written)
        self.transport.written.clear()
        return self.reader.receive(data)

    def begin(self, channel: int) -> None:
        command = BeginTransaction(transaction=f"w{channel}", channel=channel)
        self.session.data_received(control_frame(command, sequence=1))

    def stage(self, channel: int, size_bytes: int) -> None:
        head, body = encode([bytes(size_bytes)])
        self.session._on_frame((Opcode.STAGE, channel, 0, memoryview(head + body)))

    def commit(self, channel: int) -> None:
        command = CommitTransaction(channel=channel, topics=[TOPIC], acks=[])
        self.session.data_received(control_frame(command, sequence=2))


@pytest.fixture
async def bench() -> StreamBench:
    bench = StreamBench()
    bench.create(TOPIC)
    return bench


@pytest.fixture
async def door(bench: StreamBench) -> NativeDoor:
    return NativeDoor(bench.broker, busy_poll_us=0, now_ns=lambda: 0)


async def test_whoever_commits_faster_than_the_journal_writes_is_not_read_from(
    bench: StreamBench, door: NativeDoor
) -> None:
    end = End(bench, door)
    for channel in range(1, COMMITTING_BYTES_MAX // (7 << 20) + 2):
        end.begin(channel)
        end.stage(channel, 7 << 20)
        end.commit(channel)

    assert not end.transport.reading
    bench.settle()
    assert end.transport.reading


async def test_what_all_connections_have_staged_stays_within_one_limit(
    bench: StreamBench, door: NativeDoor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(native_streams, "STAGED_BYTES_MAX", 10_000)
    ends = [End(bench, door) for _ in range(3)]
    for end in ends:
        end.begin(1)
        end.stage(1, 4_000)

    errors = [end.session.transactions[1].error for end in ends]

    assert errors[:2] == [None, None]
    assert isinstance(errors[2], LimitReachedError)
    assert door.staged_bytes < 10_000


@pytest.mark.parametrize("way", ["commit", "abort", "leave", "fail"])
async def test_what_was_staged_is_not_counted_once_it_is_gone(
    bench: StreamBench, door: NativeDoor, way: str
) -> None:
    end = End(bench, door)
    end.begin(1)
    end.stage(1, 4_000)
    assert door.staged_bytes > 4_000

    if way == "commit":
        end.commit(1)
        bench.settle()
    elif way == "abort":
        end.session.data_received(control_frame(AbortTransaction(channel=1), sequence=3))
    elif way == "leave":
        end.session.connection_lost(None)
    else:
        for _ in range(TRANSACTION_BYTES_MAX // (7 << 20) + 1):
            end.stage(1, 7 << 20)
        assert end.session.transactions[1].error is not None

    assert door.staged_bytes == 0


async def test_a_transaction_that_takes_too_long_is_let_go_of_and_its_commit_refused(
    bench: StreamBench, door: NativeDoor
) -> None:
    end = End(bench, door)
    end.begin(1)
    end.stage(1, 4_000)
    began_ms = bench.clock.monotonic_ms()

    end.session.pulse(began_ms + 59_000)
    assert door.staged_bytes > 0
    end.session.pulse(began_ms + 60_000)

    assert door.staged_bytes == 0
    assert isinstance(end.session.transactions[1].error, TransactionError)
    end.commit(1)
    bench.settle()
    assert bench.topic(TOPIC).next_offset == 0


async def test_what_waits_for_the_journal_counts_as_open() -> None:
    bench = StreamBench(consumers_per_connection_max=2)
    bench.create(TOPIC)
    end = End(bench, NativeDoor(bench.broker, busy_poll_us=0))
    for channel in range(1, 5):
        command = Subscribe(
            topic=TOPIC, subscription=f"s{channel}", consumer="c", channel=channel, type="shared"
        )
        end.session.data_received(control_frame(command, sequence=channel))
    bench.settle()

    assert sorted(end.session.consumers) == [1, 2]


async def test_a_client_that_is_not_read_from_is_not_taken_for_dead(
    bench: StreamBench, door: NativeDoor
) -> None:
    end = End(bench, door)
    end.session.hold_up()

    bench.clock.advance(4 * door.heartbeat_ms / 1000)
    dead = end.session.pulse(bench.clock.monotonic_ms())
    end.session.go_on()

    assert not dead
    assert not end.session.pulse(bench.clock.monotonic_ms() + door.heartbeat_ms)
    assert end.session.pulse(bench.clock.monotonic_ms() + 4 * door.heartbeat_ms)
