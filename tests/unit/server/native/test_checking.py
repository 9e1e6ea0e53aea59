"""Batches that a thread checks against a schema while their session waits."""

import asyncio
import threading
from collections.abc import AsyncIterator

import pytest
from tests.unit.broker.streambench import TOPIC, StreamBench
from tests.unit.server.native.test_session import End

from ister.base.errors import SchemaViolationError
from ister.codec import Batch, encode
from ister.server.native import NativeDoor
from ister.wire import (
    BeginTransaction,
    CommitTransaction,
    Frame,
    ListNamespaces,
    Opcode,
    control_frame,
    decode_command,
    publish_frame,
)

LARGE = 100


class Gate:
    """A schema check that thinks until it is told to go on, and refuses what is bad."""

    def __init__(self) -> None:
        self.go_on = threading.Event()
        self.begun = asyncio.Event()
        self._loop = asyncio.get_running_loop()

    def weight(self, batch: Batch) -> int:
        return 1

    def check(self, batch: Batch) -> None:
        if batch.count >= LARGE:
            self._loop.call_soon_threadsafe(self.begun.set)
            assert self.go_on.wait(10)
        if b"bug" in batch.payloads:
            raise ZeroDivisionError
        if b"bad" in batch.payloads:
            raise SchemaViolationError("topic", "subject", "bad")


class Checked(End):
    """A client of a topic that is bound to a schema."""

    def __init__(self, bench: StreamBench | None = None) -> None:
        self.bench = bench
        super().__init__(NativeDoor(bench.broker, busy_poll_us=0) if bench else None)
        self.gate = Gate()
        self.door.broker.schema_check_of = lambda _: self.gate

    def frame(self, sequence: int, *payloads: bytes) -> bytes:
        head, body = encode(payloads, producer=b"p")
        return b"".join(publish_frame(1, sequence, head, body, opcode=Opcode.PUBLISH))

    async def answers(self, count: int) -> list[Frame]:
        """Return the next answers."""
        answers = self.sent()
        async with asyncio.timeout(10):
            while len(answers) < count:
                await asyncio.sleep(0.001)
                if self.bench is not None:
                    self.bench.settle()
                answers += self.sent()
        return answers


@pytest.fixture
async def end() -> AsyncIterator[Checked]:
    end = Checked()
    yield end
    end.gate.go_on.set()


async def test_frames_wait_for_the_check_of_the_one_before_them(end: Checked) -> None:
    large = end.frame(5, *[b"good"] * LARGE)
    end.session.data_received(large + end.frame(6, b"good"))
    await end.gate.begun.wait()
    end.session.data_received(end.frame(7, b"good") + control_frame(ListNamespaces(), sequence=8))
    assert end.sent() == []
    assert end.session.pulse(10**9) is False
    end.gate.go_on.set()

    answers = await end.answers(4)
    assert [(opcode, sequence) for opcode, _, sequence, _ in answers if opcode != Opcode.PING] == [
        (Opcode.PUBLISHED, 5),
        (Opcode.PUBLISHED, 6),
        (Opcode.PUBLISHED, 7),
        (Opcode.CONTROL, 8),
    ]


async def test_a_bad_batch_costs_its_own_answer_only(end: Checked) -> None:
    end.gate.go_on.set()
    large = end.frame(5, *[b"bad"] * LARGE)
    end.session.data_received(large + end.frame(6, b"bad") + end.frame(7, b"good"))

    answers = await end.answers(3)
    assert [(opcode, sequence) for opcode, _, sequence, _ in answers] == [
        (Opcode.CONTROL, 5),
        (Opcode.CONTROL, 6),
        (Opcode.PUBLISHED, 7),
    ]


async def test_one_large_batch_after_the_other_is_checked(end: Checked) -> None:
    end.gate.go_on.set()
    frames = [end.frame(5 + n, *[b"good"] * LARGE) for n in range(3)]
    end.session.data_received(b"".join(frames))

    answers = await end.answers(3)
    assert [sequence for _, _, sequence, _ in answers] == [5, 6, 7]


async def test_a_client_that_is_gone_publishes_nothing_more(end: Checked) -> None:
    end.session.data_received(end.frame(5, *[b"good"] * LARGE) + end.frame(6, b"good"))
    await end.gate.begun.wait()
    end.transport.close()
    end.session.connection_lost(None)
    end.gate.go_on.set()
    await asyncio.get_running_loop().shutdown_default_executor()
    await asyncio.sleep(0)

    assert end.door.broker.report().messages_in == 0


async def test_a_schema_check_with_a_bug_costs_the_connection(end: Checked) -> None:
    end.gate.go_on.set()
    end.session.data_received(end.frame(5, *[b"bug"] * LARGE))
    (answer,) = await end.answers(1)

    assert b"ZeroDivisionError" in bytes(answer[3])
    assert end.transport.is_closing()


async def transact(end: Checked, *payloads: bytes) -> str:
    """Commit a transaction that is checked in a thread; return what the answer is called."""
    staged = b"".join(publish_frame(9, 0, *encode(payloads), opcode=Opcode.STAGE))
    begin = control_frame(BeginTransaction(channel=9, transaction=payloads[0].decode()), sequence=5)
    commit = control_frame(CommitTransaction(channel=9, topics=[TOPIC]), sequence=6)
    after = control_frame(ListNamespaces(), sequence=7)
    end.session.data_received(begin + staged + commit + after)
    answers = await end.answers(3)
    return next(type(decode_command(body)).__name__ for _, _, n, body in answers if n == 6)


async def test_a_large_transaction_is_checked_before_it_is_committed() -> None:
    bench = StreamBench()
    bench.create()
    end = Checked(bench)
    end.gate.go_on.set()

    assert await transact(end, *[b"good"] * LARGE) == "TransactionCommitted"
    assert await transact(end, *[b"bad"] * LARGE) == "ErrorReply"
    assert bench.topic().next_offset == LARGE


@pytest.mark.parametrize("gone", [True, False])
async def test_a_transaction_counts_as_staged_while_it_is_checked(*, gone: bool) -> None:
    bench = StreamBench()
    bench.create()
    end = Checked(bench)
    committing = asyncio.ensure_future(transact(end, *[b"good"] * LARGE))
    await end.gate.begun.wait()
    assert end.door.staged_bytes > 0
    if gone:
        committing.cancel()
        end.transport.close()
        end.session.connection_lost(None)
        assert end.door.staged_bytes > 0
    end.gate.go_on.set()
    if not gone:
        assert await committing == "TransactionCommitted"
    await asyncio.get_running_loop().shutdown_default_executor()
    await asyncio.sleep(0)

    assert end.door.staged_bytes == 0
