"""Frames of streams: batches to be stored, acknowledgements, what is staged in a transaction."""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from ister.base import Expected
from ister.base.errors import BadRequestError, IsterError, LimitReachedError, TransactionError
from ister.base.limits import MIB, TRANSACTION_TIMEOUT_MS
from ister.broker import Membership, Producer, Storage, Transaction
from ister.codec import Batch
from ister.server.native.staging import add_to_stage
from ister.subscriptions import NEVER_MS, UNUSED_MS
from ister.wire import (
    BACKOFF_DELAY,
    Frame,
    NackMessages,
    Opcode,
    PublishedEach,
    Run,
    acked_frame,
    error_reply,
    expected_of,
    published_frame,
    runs_of,
    timed_runs_of,
)

if TYPE_CHECKING:
    from ister.server.native.session import NativeSession

# Staged by all connections and neither committed nor aborted: eight of the largest transactions.
STAGED_BYTES_MAX = 512 * MIB
# Runs of a frame dealt with before the clock is looked at: 40 µs for those of an honest client, and
# up to 12 ms for runs across very many gaps.
RUNS_AT_ONCE = 8
# Where a run ends at the latest.
OFFSET_MAX = 2**63
# Why a message is dead that was rejected without a reason.
REJECTED = "rejected by its consumer"

# What takes long, step by step: between two of them others have their turn. A step that yields
# `True` waits for somebody else.
Steps = Iterator[bool | None]


def store(
    session: "NativeSession", producer: Producer, frame: Frame, batch: Batch, *, checked: bool
) -> None:
    """Store a batch, and answer when it is as safe as its topic promises."""
    opcode, channel, sequence, _ = frame
    expected = expected_of(batch) if opcode == Opcode.PUBLISH_EXPECT else Expected()

    def told(error: IsterError | None, offsets: list[int] | None) -> None:
        if error is not None:
            session.send(error_reply(error), channel=channel, sequence=sequence)
        elif offsets is not None:
            session.send(PublishedEach(offsets=offsets), channel=channel, sequence=sequence)
        else:
            session.send_frame(
                published_frame(channel, sequence, batch.base_offset, batch.publish_time_ms)
            )
            if committer.lone:
                session.door.flush()

    assert producer.stream is not None
    committer = producer.stream.storage.committer
    session.broker.store(producer, batch, told, checked=checked, **expected)
    hold_up_if_full(session, producer.stream.storage)


def hold_up_if_full(session: "NativeSession", storage: Storage) -> None:
    """Read no more from a session while a journal has enough to write."""
    if storage.committer.full:
        session.hold_up()
        storage.committer.on_relief(session.go_on)


def acknowledge(
    session: "NativeSession", membership: Membership | None, frame: Frame
) -> Steps | None:
    """Act on ACK, ACK_THROUGH, NACK and EXTEND frames, and answer those that ask for it.

    Returns what is left to do when there are many runs.
    """
    opcode, body = frame[0], frame[3]
    runs: list[Any] = (
        runs_of(body) if opcode in (Opcode.ACK, Opcode.ACK_THROUGH) else timed_runs_of(body)
    )
    if len(runs) > RUNS_AT_ONCE:
        return _settle_many(session, membership, frame, runs)
    _answer(session, membership, frame, _settle(membership, frame, runs))
    return None


def _settle_many(
    session: "NativeSession", membership: Membership | None, frame: Frame, runs: list[Any]
) -> Iterator[None]:
    refused: list[Run] = []
    for start in range(0, len(runs), RUNS_AT_ONCE):
        refused += _settle(membership, frame, runs[start : start + RUNS_AT_ONCE])
        yield None
    _answer(session, membership, frame, refused)


def _settle(membership: Membership | None, frame: Frame, runs: list[Any]) -> list[Run]:
    """Act on some runs of a frame; return those refused."""
    opcode, _, sequence, _ = frame
    if membership is None:
        return [run[:3] for run in runs]
    if opcode == Opcode.ACK:
        return membership.ack(runs, confirm=sequence > 0)
    if opcode == Opcode.ACK_THROUGH:
        return membership.ack_through(runs, confirm=sequence > 0)
    if opcode == Opcode.NACK:
        return membership.nack(runs, BACKOFF_DELAY)
    return membership.extend(runs)


def nack_with_reason(membership: Membership | None, command: NackMessages) -> Iterator[None]:
    """Give messages back, some in each step."""
    for _, start, end, delay_ms in command.runs:
        if not (0 <= start < end <= OFFSET_MAX and delay_ms >= 0):
            raise BadRequestError(f"run {start} to {end} with a delay of {delay_ms} ms is no run")
    runs, reason = command.runs, command.reason
    if command.reject:
        runs = [(*run[:3], NEVER_MS) for run in runs]
        reason = reason or REJECTED
    elif command.unused is True:
        runs = [(*run[:3], UNUSED_MS) for run in runs]
        if membership is not None:
            # Or they would come back to this very consumer.
            membership.consumer.withdraw()
    for first in range(0, len(runs), RUNS_AT_ONCE):
        if membership is not None:
            membership.nack(runs[first : first + RUNS_AT_ONCE], BACKOFF_DELAY, reason)
        yield None


def _answer(
    session: "NativeSession", membership: Membership | None, frame: Frame, refused: list[Run]
) -> None:
    opcode, channel, sequence, _ = frame
    if not sequence:
        return
    if opcode == Opcode.EXTEND or membership is None or not membership.durables:
        session.send_frame(acked_frame(channel, sequence, refused))
        return

    def done(error: IsterError | None) -> None:
        if error is not None:
            session.send(error_reply(error), channel=channel, sequence=sequence)
        else:
            session.send_frame(acked_frame(channel, sequence, refused))

    membership.confirm(done)


def stage_batch(session: "NativeSession", frame: Frame) -> None:
    """Add a batch to a stage or a transaction; what is wrong with it is told at its end."""
    opcode, channel, slot, body = frame
    expects = opcode == Opcode.STAGE_EXPECT
    stage = session.stages.get(channel)
    if stage is not None:
        if expects:
            session.broker.staging.fail(stage, BadRequestError("a stage has no expected offsets"))
        add_to_stage(session, stage, slot, body)
        return
    transaction = session.transactions.get(channel)
    if transaction is None or transaction.error is not None:
        return
    door = session.door
    counted = transaction.size_bytes
    try:
        batch = Batch(body)
        expected = expected_of(batch) if expects else Expected()
        session.broker.stage(transaction, slot, batch, **expected)
        door.staged_bytes += transaction.size_bytes - counted
        counted = transaction.size_bytes
        if door.staged_bytes > STAGED_BYTES_MAX:
            raise LimitReachedError("staged_bytes_max", STAGED_BYTES_MAX)
    except IsterError as error:
        door.staged_bytes -= counted
        transaction.size_bytes = 0
        transaction.fail(error)


def end_old_transactions(session: "NativeSession", now_ms: int) -> None:
    """Let go of what was staged too long ago; who commits it is told."""
    for channel, begun_ms in session.begun_ms.items():
        transaction = session.transactions[channel]
        if transaction.error is None and now_ms - begun_ms >= TRANSACTION_TIMEOUT_MS:
            session.door.staged_bytes -= transaction.size_bytes
            transaction.size_bytes = 0
            reason = f"it took longer than {TRANSACTION_TIMEOUT_MS // 1000} seconds"
            transaction.fail(TransactionError(transaction.id, reason))


def end_transaction(session: "NativeSession", channel: int) -> Transaction | None:
    """Take a transaction from a session: it is committed, aborted, or its client is gone."""
    transaction = session.transactions.pop(channel, None)
    session.begun_ms.pop(channel, None)
    if transaction is not None:
        session.door.staged_bytes -= transaction.size_bytes
    return transaction
