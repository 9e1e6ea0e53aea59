"""The bytes of batches, frames and commands stay what they are.

A peer of another version reads these bytes: a file changes only together with its specification
in `docs/batch-format.md` or `docs/protocol.md`, and with a version number where old peers would
misread it. Adding a case, or after such a change, run

    .venv/bin/python -m tests.golden.regenerate

and review the difference. Nothing runs it by itself.
"""

import pytest
from tests.golden.cases import (
    ANSWERS,
    BASE_OFFSET,
    BATCHES,
    HOT_FRAMES,
    LEASE_NUMBER,
    NOTICES,
    ON_CHANNEL,
    build_all,
    command_frame,
)
from tests.golden.files import names, read
from tests.unit.codec.strategies import shown
from tests.unit.wire.samples import COMMANDS

from ister.codec import Batch, Codec, Column
from ister.wire import (
    BACKOFF_DELAY,
    CREDIT,
    LEASE,
    PUBLISHED,
    Opcode,
    decode_command,
    runs_of,
    timed_runs_of,
)
from ister.wire.frames import FrameReader, body_limits

PUBLISH_TIME_MS = 1_700_000_000_000
SESSION = 81_985_529_216_486_895


def frame(name: str) -> tuple[int, int, int, bytes]:
    """Return the one frame in a golden file."""
    [(opcode, channel, sequence, body)] = FrameReader(body_limits(65_536)).receive(read(name))
    return opcode, channel, sequence, bytes(body)


def test_there_is_one_file_for_every_case() -> None:
    assert names() == build_all().keys()


@pytest.mark.parametrize("name", [n for n, c in BATCHES.items() if c.codec is Codec.NONE])
def test_encoding_a_batch_gives_the_golden_bytes(name: str) -> None:
    assert BATCHES[name].build() == read(f"batch-{name}")


@pytest.mark.parametrize("name", BATCHES)
def test_a_golden_batch_decodes_to_its_columns(name: str) -> None:
    case = BATCHES[name]
    slots = list(case.slots or range(len(case.messages.payloads)))

    assert shown(Batch(read(f"batch-{name}"))) == case.messages.select(slots).shown()


@pytest.mark.parametrize("name", BATCHES)
def test_a_golden_batch_decodes_to_its_header(name: str) -> None:
    case = BATCHES[name]
    batch = Batch(read(f"batch-{name}"))

    assert (batch.codec, batch.base_offset, batch.publish_time_ms) == (
        case.codec,
        BASE_OFFSET,
        PUBLISH_TIME_MS,
    )
    assert (batch.producer_bytes, batch.producer_id, batch.first_sequence) == (
        case.messages.header.get("producer", b""),
        case.messages.header.get("producer_id", 0),
        case.messages.header.get("first_sequence", 0),
    )


def test_the_golden_batch_of_every_column_has_every_column() -> None:
    every = Column.KEY | Column.ATTRIBUTES | Column.TIMESTAMP | Column.ID | Column.REPLY

    assert Batch(read("batch-every-column")).columns == every
    assert Batch(read("batch-selected")).columns == every | Column.OFFSET


def test_the_golden_selection_keeps_the_offsets_of_its_messages() -> None:
    assert list(Batch(read("batch-selected")).offsets) == [BASE_OFFSET, BASE_OFFSET + 2]


@pytest.mark.parametrize("name", HOT_FRAMES)
def test_encoding_a_hot_frame_gives_the_golden_bytes(name: str) -> None:
    assert HOT_FRAMES[name]() == read(f"frame-{name}")


def test_the_golden_publish_frame_decodes() -> None:
    opcode, channel, sequence, body = frame("frame-publish")

    assert (opcode, channel, sequence) == (Opcode.PUBLISH, 3, 9)
    assert Batch(body).payloads == [b"hi"]


def test_the_golden_bulk_publish_frame_decodes() -> None:
    opcode, channel, sequence, body = frame("frame-publish-bulk")

    assert (opcode, channel, sequence) == (Opcode.PUBLISH_BULK, 3, 10)
    assert Batch(body).payloads == [b"hi"]


def test_the_golden_published_frame_decodes() -> None:
    opcode, channel, sequence, body = frame("frame-published")

    assert (opcode, channel, sequence) == (Opcode.PUBLISHED, 3, 9)
    assert PUBLISHED.unpack(body) == (BASE_OFFSET, PUBLISH_TIME_MS)


def test_the_golden_deliver_frame_decodes() -> None:
    opcode, channel, number, body = frame("frame-deliver")

    assert (opcode, channel, number) == (Opcode.DELIVER, 2, 1)
    assert body == read("batch-single")


def test_the_golden_credit_frame_decodes() -> None:
    opcode, channel, sequence, body = frame("frame-credit")

    assert (opcode, channel, sequence) == (Opcode.CREDIT, 2, 0)
    assert CREDIT.unpack(body) == (65_536, 8_388_608)


def test_the_golden_expecting_publish_frame_holds_the_expected_offset() -> None:
    opcode, channel, sequence, body = frame("frame-publish-expect")

    assert (opcode, channel, sequence) == (Opcode.PUBLISH_EXPECT, 3, 11)
    assert (Batch(body).base_offset, Batch(body).payloads) == (BASE_OFFSET, [b"hi"])


def test_the_golden_stage_frame_decodes() -> None:
    opcode, channel, slot, body = frame("frame-stage")

    assert (opcode, channel, slot) == (Opcode.STAGE, 5, 1)
    assert Batch(body).payloads == [b"hi"]


def test_the_golden_expecting_stage_frame_holds_the_expected_offset() -> None:
    opcode, channel, slot, body = frame("frame-stage-expect")

    assert (opcode, channel, slot) == (Opcode.STAGE_EXPECT, 5, 1)
    assert (Batch(body).base_offset, Batch(body).payloads) == (BASE_OFFSET, [b"hi"])


def test_the_golden_leased_frame_has_the_lease_before_the_batch() -> None:
    opcode, channel, number, body = frame("frame-deliver-leased")

    assert (opcode, channel, number) == (Opcode.DELIVER_LEASED, 2, 1)
    assert LEASE.unpack_from(body) == (LEASE_NUMBER, 1, 30_000)
    assert body[LEASE.size :] == read("batch-single")


@pytest.mark.parametrize(
    ("name", "opcode", "sequence", "runs"),
    [
        ("ack", Opcode.ACK, 0, [(12, 1_000, 1_003), (14, 1_003, 1_004)]),
        ("ack-confirmed", Opcode.ACK, 6, [(12, 1_000, 1_001)]),
        ("ack-through", Opcode.ACK_THROUGH, 7, [(14, 1_003, 1_004)]),
        ("acked", Opcode.ACKED, 6, []),
        ("acked-refused", Opcode.ACKED, 7, [(14, 1_003, 1_004)]),
    ],
)
def test_the_golden_frames_of_runs_decode(
    name: str, opcode: int, sequence: int, runs: list[tuple[int, int, int]]
) -> None:
    *head, body = frame(f"frame-{name}")

    assert head == [opcode, 2, sequence]
    assert runs_of(memoryview(body)) == runs


@pytest.mark.parametrize(
    ("name", "opcode", "sequence", "runs"),
    [
        ("nack", Opcode.NACK, 0, [(12, 1_000, 1_001, 5_000)]),
        ("nack-backoff", Opcode.NACK, 0, [(12, 1_000, 1_001, BACKOFF_DELAY)]),
        ("extend", Opcode.EXTEND, 8, [(12, 1_000, 1_003, 60_000)]),
    ],
)
def test_the_golden_frames_of_timed_runs_decode(
    name: str, opcode: int, sequence: int, runs: list[tuple[int, int, int, int]]
) -> None:
    *head, body = frame(f"frame-{name}")

    assert head == [opcode, 2, sequence]
    assert timed_runs_of(memoryview(body)) == runs


def test_the_golden_reply_frame_decodes() -> None:
    opcode, channel, sequence, body = frame("frame-reply")

    assert (opcode, channel, sequence) == (Opcode.REPLY, 0, 0)
    assert (Batch(body).payloads, Batch(body).replies) == ([b"42"], [(SESSION, 1)])


@pytest.mark.parametrize(("name", "opcode"), [("ping", Opcode.PING), ("pong", Opcode.PONG)])
def test_the_golden_beats_decode(name: str, opcode: int) -> None:
    assert frame(f"frame-{name}") == (opcode, 0, 0, b"")


@pytest.mark.parametrize("name", COMMANDS)
def test_encoding_a_command_gives_the_golden_bytes(name: str) -> None:
    assert command_frame(name) == read(f"command-{name}")


@pytest.mark.parametrize("name", COMMANDS)
def test_a_golden_command_decodes_to_its_fields(name: str) -> None:
    opcode, _, _, body = frame(f"command-{name}")

    assert (opcode, decode_command(body)) == (Opcode.CONTROL, COMMANDS[name])


@pytest.mark.parametrize("name", COMMANDS)
def test_a_golden_command_is_a_request_a_reply_or_a_notice(name: str) -> None:
    _, channel, sequence, _ = frame(f"command-{name}")

    assert (channel > 0) is (name in ON_CHANNEL | ANSWERS)
    assert (sequence == 0) is (name in ON_CHANNEL | NOTICES | {"hello"})
