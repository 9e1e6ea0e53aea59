"""Messages on their way to the broker, and what tells the application about them."""

from collections.abc import Callable
from typing import Any

import msgspec

from ister.base.errors import BadRequestError, IsterError
from ister.client.session.checks import attributes_size
from ister.client.session.futures import Future, error_to_raise
from ister.client.session.ids import MessageId, Stored, message_id
from ister.codec import Attributes, ReplyAddress

# No message of a stream has this number.
UNNUMBERED = -1
# No base offset is expected.
ANY_OFFSET = -1


class PendingBatch:
    """Messages on their way to the broker.

    Most fields keep their default for most batches, so the defaults live in the class: making a
    batch is on the latency path.
    """

    # Whether any of the optional columns is in use.
    extras = False
    keys: list[str | None] | None = None
    attributes: list[Attributes | None] | None = None
    ids: list[str | None] | None = None
    replies: list[ReplyAddress] | None = None
    # While open: what may still be added. Once closed: `size_bytes`.
    room_bytes = 0
    size_bytes = 0
    # Of its frame: the answer says which batch it is about.
    sequence = 0
    # Of its first message, on a stream once it was sent: it is sent again under the same number.
    first_sequence = UNNUMBERED
    # The base offset it must get, or none.
    expected_offset = ANY_OFFSET
    base_offset = 0
    # Where each message is, when they do not follow each other; see `PublishedEach`.
    offsets: list[int] | None = None
    done = False
    error: IsterError | None = None
    # Set while nobody knows whether it is stored: it is sent again until that is known.
    uncertain: IsterError | None = None
    # Whether somebody waits for it, or was told of its error.
    awaited = False
    _waiters: list[Future] | None = None
    _callbacks: list[Callable[[], object]] | None = None

    def __init__(self, topic: str, queued_ms: int) -> None:
        self.topic = topic
        self.queued_ms = queued_ms
        self.payloads: list[bytes] = []

    def wait(self, waiter: Future) -> None:
        """Finish `waiter` when this batch is done, well or badly: `failure` says which."""
        self.awaited = True
        if self._waiters is None:
            self._waiters = []
        self._waiters.append(waiter)

    def on_done(self, callback: Callable[[], object]) -> None:
        """Call `callback` when this batch is done."""
        if self._callbacks is None:
            self._callbacks = []
        self._callbacks.append(callback)

    def add_extras(
        self,
        key: str | None,
        attributes: Attributes | None,
        message_id: str | None,
        reply: ReplyAddress | None,
    ) -> int:
        """Fill the optional columns for the message just appended; return their bytes."""
        self.extras = True
        before = len(self.payloads) - 1
        size = 0
        if key is not None or self.keys is not None:
            self.keys = _extended(self.keys, before, key)
            size += len(key or "")
        if attributes is not None or self.attributes is not None:
            # A copy: callers fill one dictionary again for the next message.
            self.attributes = _extended(self.attributes, before, dict(attributes or {}))
            size += attributes_size(attributes)
        if message_id is not None or self.ids is not None:
            self.ids = _extended(self.ids, before, message_id)
            size += len(message_id or "")
        if reply is not None:
            if self.replies is None:
                self.replies = []
            self.replies.append(reply)
        return size

    def set_extras(
        self,
        keys: list[str | None] | None,
        attributes: list[Attributes | None] | None,
        ids: list[str | None] | None,
    ) -> None:
        """Set the optional columns of all messages at once; an absent or empty one is not used."""
        self.keys, self.attributes, self.ids = keys or None, attributes or None, ids or None
        self.extras = bool(keys or attributes or ids)

    def release(self) -> None:
        """Let go of what was to be sent, which will not be sent again."""
        self.payloads = []
        if self.extras:
            # Not the addresses of requests: they are failed by them.
            self.keys = self.attributes = self.ids = None

    def failure(self) -> IsterError | None:
        """Return the error as a new object, which the caller may raise."""
        return None if self.error is None else error_to_raise(self.error)

    def stored(self, count: int) -> Stored:
        """Return where its `count` messages are, once acknowledged."""
        return Stored(self.topic, self.base_offset, count, self.offsets)

    def finish(self, error: IsterError | None) -> None:
        """Tell everybody who waits for any message of this batch."""
        self.error = error
        self.done = True
        waiters, callbacks = self._waiters, self._callbacks
        self._waiters = self._callbacks = None
        for waiter in waiters or ():
            if not waiter.done():
                waiter.set_result(None)
        for callback in callbacks or ():
            callback()


def _extended(column: list[Any] | None, before: int, value: Any) -> list[Any]:
    if column is None:
        column = [None] * before
    column.append(value)
    return column


class Sent(msgspec.Struct, gc=False):
    """A message on its way: one small object instead of a future and a task for each."""

    batch: PendingBatch
    slot: int

    def done(self) -> bool:
        """Whether the broker has acknowledged or refused it."""
        return self.batch.done

    def exception(self) -> IsterError | None:
        """The error, once done."""
        return self.batch.failure()

    def result(self) -> MessageId:
        """The id, once done; raises what went wrong."""
        if not self.batch.done:
            raise BadRequestError("the message is not acknowledged yet: await it")
        if self.batch.error is not None:
            self.batch.awaited = True
            # Not by a name: this frame would refer to an error whose traceback refers to it, and
            # the payload would stay until Python looks for cycles.
            raise error_to_raise(self.batch.error)
        if self.batch.offsets is not None:
            return message_id(self.batch.topic, self.batch.offsets[self.slot])
        return MessageId(self.batch.topic, self.batch.base_offset + self.slot)
