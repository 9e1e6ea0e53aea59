"""The receiving half of one reader of a stream or partition, without I/O.

Always true: after a lost connection it goes on behind the last message that has come, and ends
where it was to end when it was opened.
"""

from typing import TYPE_CHECKING

from ister.base import Origin, Position
from ister.base.errors import ClosedError, IsterError
from ister.base.limits import MIB
from ister.client.session.consuming.inbox import Inbox
from ister.codec import Batch, Column
from ister.wire import OpenReader, ReaderOpened

if TYPE_CHECKING:
    from ister.client.session.port import SessionPort

# Twice what a subscription has: a reader is after bandwidth, and pays nothing for what it drops.
READER_BYTES = 16 * MIB
# Never less than the bytes allow, with messages of 16 B.
READER_COUNT = READER_BYTES // 16


class ReaderChannel:
    """One reader of a stream or partition."""

    def __init__(self, session: "SessionPort", command: OpenReader) -> None:
        self.command = command
        self.channel = command.channel
        # Whether everything up to the end has come, and is in the inbox or taken. When the inbox
        # is closed without this, something is missing.
        self.ended = False
        self.inbox = Inbox(
            session,
            channel=command.channel,
            credit_count=READER_COUNT,
            credit_bytes=READER_BYTES,
        )

    def on_deliver(self, batch: Batch) -> None:
        """A batch has come."""
        self.inbox.on_deliver(batch)
        if batch.columns & Column.OFFSET:
            next_offset = batch.offsets[-1] + 1
        else:
            next_offset = batch.base_offset + batch.count
        self.command.start = Position(origin=Origin.OFFSET, at=next_offset)

    def on_opened(self, reply: ReaderOpened) -> None:
        """The broker has opened it, for the first time or again; words have become offsets."""
        self.command.start = Position(origin=Origin.OFFSET, at=reply.start)
        if self.command.end is not None:
            self.command.end = Position(origin=Origin.OFFSET, at=max(reply.end, 0))
        self.inbox.on_opened()

    def on_ended(self, error: IsterError | None) -> None:
        """Nothing more comes: it has reached its end, or broke off."""
        self.ended = error is None
        self.inbox.fail(error or ClosedError(f"the reader of {self.command.topic!r}"))

    def fail(self, error: IsterError) -> None:
        """End it before its end; who waits gets `error` once everything is taken."""
        self.inbox.fail(error)
