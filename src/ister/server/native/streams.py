"""Frames of streams: batches to be stored, acknowledgements, what is staged in a transaction."""

from typing import TYPE_CHECKING

from ister.base.errors import IsterError
from ister.broker import Attachment, Producer, Vault
from ister.codec import Batch
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


def store(session: "NativeSession", producer: Producer, frame: Frame, batch: Batch) -> None:
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

    expected = batch.base_offset if opcode == Opcode.PUBLISH_EXPECT else None
    session.broker.store(producer, batch, told, expected_offset=expected)
    assert producer.stream is not None
    committer = producer.stream.vault.committer
    if committer.full:
        session.hold_up()
        committer.on_relief(session.go_on)


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


def stage(session: "NativeSession", frame: Frame) -> None:
    """Add a batch to a transaction; what is wrong with it is told at the commit."""
    _, channel, slot, body = frame
    transaction = session.transactions.get(channel)
    if transaction is None or transaction.error is not None:
        return
    try:
        session.broker.stage(transaction, slot, Batch(body))
    except IsterError as error:
        transaction.fail(error)
