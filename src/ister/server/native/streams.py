"""Frames of streams: batches to be stored, acknowledgements, what is staged in a transaction."""

from typing import TYPE_CHECKING

from ister.base.errors import IsterError, LimitReachedError, TransactionError
from ister.base.limits import MIB, TRANSACTION_TIMEOUT_MS
from ister.broker import Attachment, Producer, Transaction, Vault
from ister.codec import Batch
from ister.server.native.staging import add_to_stage
from ister.wire import (
    BACKOFF_DELAY,
    Frame,
    Opcode,
    PublishedEach,
    Run,
    acked_frame,
    error_reply,
    published_frame,
    runs_of,
    timed_runs_of,
)

if TYPE_CHECKING:
    from ister.server.native.session import NativeSession

# Staged by all connections and neither committed nor aborted: eight of the largest transactions.
STAGED_BYTES_MAX = 512 * MIB


def store(
    session: "NativeSession", producer: Producer, frame: Frame, batch: Batch, *, checked: bool
) -> None:
    """Store a batch, and answer when it is as safe as its topic promises."""
    opcode, channel, sequence, _ = frame

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
    committer = producer.stream.vault.committer
    expected = batch.base_offset if opcode == Opcode.PUBLISH_EXPECT else None
    session.broker.store(producer, batch, told, expected_offset=expected, checked=checked)
    hold_up_if_full(session, producer.stream.vault)


def hold_up_if_full(session: "NativeSession", vault: Vault) -> None:
    """Read no more from a session while a journal has enough to write."""
    if vault.committer.full:
        session.hold_up()
        vault.committer.on_relief(session.go_on)


def acknowledge(session: "NativeSession", attachment: Attachment | None, frame: Frame) -> None:
    """Act on ACK, ACK_THROUGH, NACK and EXTEND frames, and answer those that ask for it."""
    opcode, channel, sequence, body = frame
    refused: list[Run]
    if opcode in (Opcode.ACK, Opcode.ACK_THROUGH):
        runs = runs_of(body)
        if attachment is None:
            refused = runs
        elif opcode == Opcode.ACK:
            refused = attachment.ack(runs)
        else:
            refused = attachment.ack_through(runs)
    else:
        timed = timed_runs_of(body)
        if attachment is None:
            refused = [run[:3] for run in timed]
        elif opcode == Opcode.NACK:
            refused = attachment.nack(timed, BACKOFF_DELAY)
        else:
            refused = attachment.extend(timed)
    if not sequence:
        return
    if opcode == Opcode.EXTEND or attachment is None or not attachment.durables:
        session.send_frame(acked_frame(channel, sequence, refused))
        return
    _confirm(session, attachment.vaults, channel, sequence, refused)


def _confirm(
    session: "NativeSession", vaults: list[Vault], channel: int, sequence: int, refused: list[Run]
) -> None:
    """Answer when every journal has what was acknowledged."""
    left = len(vaults)
    failed: list[IsterError] = []

    def done(error: IsterError | None) -> None:
        nonlocal left
        left -= 1
        if error is not None:
            failed.append(error)
        if left:
            return
        if failed:
            session.send(error_reply(failed[0]), channel=channel, sequence=sequence)
        else:
            session.send_frame(acked_frame(channel, sequence, refused))

    for vault in vaults:
        try:
            vault.confirm(done)
        except IsterError as error:
            done(error)


def stage_batch(session: "NativeSession", frame: Frame) -> None:
    """Add a batch to a stage or a transaction; what is wrong with it is told at its end."""
    _, channel, slot, body = frame
    stage = session.stages.get(channel)
    if stage is not None:
        add_to_stage(session, stage, slot, body)
        return
    transaction = session.transactions.get(channel)
    if transaction is None or transaction.error is not None:
        return
    door = session.door
    counted = transaction.size_bytes
    try:
        session.broker.stage(transaction, slot, Batch(body))
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
            transaction.fail(TransactionError(transaction.word, reason))


def end_transaction(session: "NativeSession", channel: int) -> Transaction | None:
    """Take a transaction from a session: it is committed, aborted, or its client is gone."""
    transaction = session.transactions.pop(channel, None)
    session.begun_ms.pop(channel, None)
    if transaction is not None:
        session.door.staged_bytes -= transaction.size_bytes
    return transaction
