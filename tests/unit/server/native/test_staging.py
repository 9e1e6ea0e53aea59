"""Frames and commands of staging, as a client that keeps no rules may send them."""

import asyncio

import pytest
from tests.unit.server.native.test_session import End

from ister.base.limits import Limits
from ister.broker import Broker, InlineWorker, Spool, Spooling
from ister.broker.transactions import stages as broker_staging
from ister.codec import encode
from ister.server.native import NativeDoor
from ister.testing import VirtualClock
from ister.wire import (
    BeginTransaction,
    CloseStage,
    Command,
    Done,
    DropStages,
    ErrorReply,
    Opcode,
    OpenStage,
    control_frame,
    decode_command,
    publish_frame,
)

BAD_REQUEST, BAD_BATCH, NOT_FOUND = 1007, 1003, 3009


class StagingEnd(End):
    """A session of a broker that takes stages."""

    def __init__(self) -> None:
        def new_worker(_: str, __: int) -> InlineWorker:
            return InlineWorker(asyncio.get_running_loop().call_soon)

        broker = Broker(
            name="b",
            limits=Limits(),
            clock=VirtualClock(),
            random_slot=lambda count: count - 1,
            spooling=Spooling(new_spool=lambda: Spool(None), new_worker=new_worker),
        )
        super().__init__(NativeDoor(broker, busy_poll_us=0))

    def ask(self, command: Command) -> Command:
        """Send a command, and return its answer."""
        self.session.data_received(control_frame(command, sequence=5))
        [frame] = [frame for frame in self.sent() if frame[2] == 5]
        return decode_command(frame[3])

    def code(self, command: Command) -> int:
        """Return the number of the error that answers a command."""
        answer = self.ask(command)
        assert isinstance(answer, ErrorReply), answer
        return answer.code

    def stage(self, payload: bytes = b"x", *, channel: int = 9, slot: int = 0) -> None:
        frame = publish_frame(channel, slot, *encode([payload]), opcode=Opcode.STAGE)
        self.session.data_received(b"".join(frame))


@pytest.fixture
async def end() -> StagingEnd:
    return StagingEnd()


async def test_a_batch_for_a_channel_where_nothing_is_open_is_ignored(end: StagingEnd) -> None:
    end.stage()

    assert end.sent() == []
    assert not end.transport.closing


async def test_a_channel_is_for_one_thing_and_free_afterwards(end: StagingEnd) -> None:
    assert end.code(OpenStage(channel=1, stage="of the producer's")) == BAD_REQUEST
    assert isinstance(end.ask(OpenStage(channel=9, stage="a")), Done)
    assert end.code(OpenStage(channel=9, stage="b")) == BAD_REQUEST
    assert end.code(BeginTransaction(channel=9, transaction="t")) == BAD_REQUEST

    end.ask(CloseStage(channel=9, topics=[]))
    assert isinstance(end.ask(OpenStage(channel=9, stage="b")), Done)
    end.ask(DropStages(stages=["b"]))
    assert isinstance(end.ask(OpenStage(channel=9, stage="b")), Done)


async def test_closing_what_is_not_open_is_refused(end: StagingEnd) -> None:
    assert end.code(CloseStage(channel=9, topics=[])) == BAD_REQUEST


async def test_bytes_that_are_no_batch_cost_the_stage_and_not_the_connection(
    end: StagingEnd,
) -> None:
    end.ask(OpenStage(channel=9, stage="a"))
    head, body = encode([b"x"])
    broken = publish_frame(9, 0, head[:20] + b"\xff" + head[21:], body, opcode=Opcode.STAGE)
    end.session.data_received(b"".join(broken))

    assert end.code(CloseStage(channel=9, topics=["/default/x"])) == BAD_BATCH
    assert not end.transport.closing


async def test_a_batch_that_expects_an_offset_costs_the_stage(end: StagingEnd) -> None:
    end.ask(OpenStage(channel=9, stage="a"))
    frame = publish_frame(9, 0, *encode([b"x"]), opcode=Opcode.STAGE_EXPECT)
    end.session.data_received(b"".join(frame))

    assert end.code(CloseStage(channel=9, topics=["/default/x"])) == BAD_REQUEST


async def test_a_slot_that_no_topic_is_named_for_is_refused(end: StagingEnd) -> None:
    end.ask(OpenStage(channel=9, stage="a"))
    end.stage(slot=2**32 - 1)

    assert end.code(CloseStage(channel=9, topics=["/default/x"])) == BAD_REQUEST


async def test_a_stage_dropped_by_another_connection_is_not_found(end: StagingEnd) -> None:
    end.ask(OpenStage(channel=9, stage="a"))
    end.session.broker.staging.drop(["a"])
    end.stage()

    assert end.code(CloseStage(channel=9, topics=["/default/x"])) == NOT_FOUND


async def test_a_connection_that_is_lost_leaves_nothing_of_an_open_stage(end: StagingEnd) -> None:
    end.ask(OpenStage(channel=9, stage="a"))
    end.stage()
    end.session.connection_lost(None)
    await asyncio.sleep(0)

    assert end.session.broker.staging.count == 0
    assert end.session.broker.staging.staged_bytes == 0


async def test_a_session_is_not_read_from_while_files_are_behind(
    end: StagingEnd, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(broker_staging, "STAGING_BYTES_MAX", 100)
    monkeypatch.setattr(broker_staging, "HELD_STAGE_BYTES", 0)
    end.ask(OpenStage(channel=9, stage="a"))
    end.stage(b"x" * 200)
    assert end.session._held_up

    await asyncio.sleep(0)
    assert not end.session._held_up
