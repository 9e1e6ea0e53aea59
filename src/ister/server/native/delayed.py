"""Messages that are sent now and published later: what the command does, and its answer.

Always true: the batch is checked as one that is published at once, and every time before any of it
is kept.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from ister.base import parse_plain
from ister.base.errors import BadRequestError, IsterError
from ister.base.limits import TIMELINE_CHANGES_MAX
from ister.broker import DelayedBatch
from ister.codec import Batch
from ister.server.native.publishing import check_aside
from ister.server.native.timelines import paced
from ister.wire import Command, Done, SendDelayed, column

if TYPE_CHECKING:
    from ister.server.native.session import NativeSession

# Ids of messages are made of it. A client's own id and two numbers are half of that.
WORD_LENGTH_MAX = 64

Reply = Callable[[Command | IsterError], object]


def send_delayed(session: "NativeSession", command: SendDelayed, reply: Reply) -> None:
    """Keep messages until they are due; the answer comes when the store has them."""
    broker, producer = session.broker, session.producers.get(command.channel)
    if producer is None:
        raise BadRequestError(f"no producer is open on channel {command.channel}")
    if len(parse_plain(command.word, "a word")) > WORD_LENGTH_MAX:
        raise BadRequestError(f"a word has at most {WORD_LENGTH_MAX} characters")
    batch = Batch(command.batch)
    if batch.count > TIMELINE_CHANGES_MAX:
        raise BadRequestError(f"at most {TIMELINE_CHANGES_MAX} messages are delayed at once")
    now_ms = broker.clock.now_ms()
    due_ms = column(command.due_ms, batch.count, 0)
    delays_ms = column(command.delays_ms, batch.count, 0)
    delayed = DelayedBatch(
        batch,
        command.word,
        # What is due already is due now.
        [max(due, now_ms + delay) for due, delay in zip(due_ms, delays_ms, strict=True)],
    )

    def on_done(error: IsterError | None) -> None:
        reply(error or Done())

    def on_checked(error: IsterError | None) -> None:
        try:
            if error is not None:
                raise error
            broker.delay(producer, delayed, on_done, checked=True)
        except IsterError as refused:
            reply(refused)

    check = broker.long_check(producer, batch) if producer.topic.schema_check is not None else None
    if check is not None:
        check_aside(session, check, on_checked)
    else:
        broker.delay(producer, delayed, on_done)


DELAYED_ACTIONS: dict[type, Callable[["NativeSession", Any, Reply], None]] = {
    SendDelayed: paced(send_delayed),
}
