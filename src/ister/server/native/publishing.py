"""Publish frames; and batches that are checked against a schema before anything else is done.

Always true: while a thread checks a batch, its session acts on no other frame, so that what a
client has sent is done in the order it was sent; a bad batch costs its own answer only.
"""

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, cast

from ister.base.errors import BadRequestError, IsterError, WrongKindError
from ister.broker import LongCheck, Producer, Topic
from ister.codec import Batch
from ister.server.native.streams import Steps, store
from ister.wire import Frame, Opcode, error_reply, published_frame

if TYPE_CHECKING:
    from ister.server.native.session import NativeSession


def publish(session: "NativeSession", frame: Frame) -> bool:
    """Publish a batch and queue the answer; return whether it is still to be sent."""
    _, channel, sequence, body = frame
    try:
        producer = session.producers.get(channel)
        if producer is None:
            raise BadRequestError(f"no producer is open on channel {channel}")
        batch = Batch(body)
        if producer.topic.schema_check is not None:
            check = session.broker.long_check(producer, batch)
            if check is not None:
                _publish_checked(session, producer, frame, batch, check)
                return False
        return _publish(session, producer, frame, batch)
    except IsterError as error:
        session.send(error_reply(error), channel=channel, sequence=sequence)
        return False


def _publish(
    session: "NativeSession",
    producer: Producer,
    frame: Frame,
    batch: Batch,
    *,
    checked: bool = False,
) -> bool:
    opcode, channel, sequence, _ = frame
    if producer.stream is not None:
        store(session, producer, frame, batch, checked=checked)
        return False
    if opcode == Opcode.PUBLISH_EXPECT:
        raise WrongKindError(producer.topic.name, "live", "it has no expected offsets")
    steps = session.broker.publish(producer, batch, checked=checked)
    if steps is not None:
        session.take(_answer_after(session, frame, batch, steps))
        return False
    copies = len(cast("Topic", producer.topic).subscriptions)
    if copies > 1:
        session.door.count_copies(copies)
    session.connection.send(
        published_frame(channel, sequence, batch.base_offset, batch.publish_time_ms)
    )
    return True


def _answer_after(session: "NativeSession", frame: Frame, batch: Batch, steps: Steps) -> Steps:
    """Publish a batch in steps, and answer then."""
    _, channel, sequence, _ = frame
    try:
        yield from steps
    except IsterError as error:
        session.send(error_reply(error), channel=channel, sequence=sequence)
        return
    session.send_frame(published_frame(channel, sequence, batch.base_offset, batch.publish_time_ms))


def _publish_checked(
    session: "NativeSession", producer: Producer, frame: Frame, batch: Batch, check: LongCheck
) -> None:
    _, channel, sequence, _ = frame

    def on_checked(error: IsterError | None) -> None:
        try:
            if error is not None:
                raise error
            if _publish(session, producer, frame, batch, checked=True):
                session.mark_dirty()
        except IsterError as refused:
            session.send(error_reply(refused), channel=channel, sequence=sequence)

    check_aside(session, check, on_checked)


def check_aside(
    session: "NativeSession",
    check: LongCheck,
    on_checked: Callable[[IsterError | None], object],
    *,
    staged_bytes: int = 0,
) -> None:
    """Have a thread check something while the session waits; `on_checked` gets what is wrong.

    It is not called when the connection was cut by then. `staged_bytes` of a transaction count
    until the thread has let go of them, in either case.
    """
    session.hold_back()
    door = session.door
    door.staged_bytes += staged_bytes

    def on_done(result: asyncio.Future[None]) -> None:
        door.staged_bytes -= staged_bytes
        if result.cancelled():
            return
        error = result.exception()

        def act() -> None:
            if error is not None and not isinstance(error, IsterError):
                raise error
            on_checked(error)

        session.let_go(act)

    asyncio.get_running_loop().run_in_executor(None, check).add_done_callback(on_done)
