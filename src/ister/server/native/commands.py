"""What each control command about a channel does, and what it is answered.

Those that are operations, which need no channel, are in `control`.

An answer may come later, when a journal has what was asked for: an action gets `reply`, which it
calls once with a command or an error. What an action raises is answered at once. An action that
takes long returns its steps, between which others have their turn; its session waits until then.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from msgspec import UNSET

from ister.base.errors import BadRequestError, GoingAwayError, IsterError, ProtocolError
from ister.broker import (
    Membership,
    Reader,
    StreamTopic,
    SubscribeOptions,
    Topic,
    Transaction,
    check_commit,
    open_reader,
)
from ister.codec import available
from ister.server.native.channels import check_channel, check_room
from ister.server.native.control import CONTROLS, admit, ask
from ister.server.native.cron import CRON_ACTIONS
from ister.server.native.delayed import DELAYED_ACTIONS
from ister.server.native.layouts import LAYOUT_ACTIONS
from ister.server.native.publishing import check_aside
from ister.server.native.staging import STAGING_ACTIONS
from ister.server.native.streams import Steps, end_transaction, hold_up_if_full, nack_with_reason
from ister.server.native.timelines import TIMELINE_ACTIONS
from ister.wire import (
    AbortTransaction,
    BeginTransaction,
    Chosen,
    CloseConsumer,
    CloseProducer,
    CloseReader,
    Command,
    CommitTransaction,
    Done,
    Frame,
    NackMessages,
    OpenProducer,
    OpenReader,
    ProducerOpened,
    ReaderOpened,
    Subscribe,
    Subscribed,
    TransactionCommitted,
    Welcome,
    accept_hello,
    control_frame,
    error_reply,
)

if TYPE_CHECKING:
    from ister.server.native.session import NativeSession

Reply = Callable[[Command | IsterError], object]

# A reply from this size on is sent at once, so that we notice when nobody reads what we answer.
LARGE_REPLY_BYTES = 8 * 1024

# Staged and neither committed nor aborted, of one connection.
TRANSACTIONS_MAX = 64

# Also of readers. What waits for a journal or a disk counts.
_CONSUMERS_MAX = "consumers_per_connection_max"


def greet(session: "NativeSession", frame: Frame) -> None:
    """Answer the hello of a client, or raise why it is not let in."""
    hello, version = accept_hello(frame)
    session.shown = session.door.authenticator.check(
        hello.token, door="native", address=session.address
    )
    if session.door.closing:
        raise GoingAwayError("shutting down")
    session.opened(hello)
    limits = session.broker.limits
    session.send(
        Welcome(
            version=version,
            broker=session.broker.name,
            session=session.id,
            codecs=[c.name.lower() for c in available()],
            message_bytes_max=limits.message_bytes_max,
            batch_bytes_max=limits.batch_bytes_max,
            heartbeat_ms=session.door.heartbeat_ms,
        ),
        sequence=frame[2],
    )


def carry_out(session: "NativeSession", sequence: int, command: Command) -> Steps | None:
    """Carry out a command and answer it; return what is left to do when that takes long."""

    def reply(result: Command | IsterError) -> None:
        command = error_reply(result) if isinstance(result, IsterError) else result
        try:
            frame = control_frame(command, sequence=sequence)
        except IsterError as error:
            frame = control_frame(error_reply(error), sequence=sequence)
        session.send_frame(frame)
        if len(frame) >= LARGE_REPLY_BYTES:
            session.flush()

    control, act = CONTROLS.get(type(command)), ACTIONS.get(type(command))
    steps = None
    try:
        if control is not None:
            steps = ask(session, control, command, reply)
        elif act is not None:
            admit(session, command)
            steps = act(session, command, reply)
        else:
            raise ProtocolError(f"command {type(command).__name__} is not for a broker")
    except ProtocolError:
        raise
    except IsterError as error:
        reply(error)
    for storage in session.broker.streams.storages:
        hold_up_if_full(session, storage)
    return None if steps is None else _answered(steps, reply)


def _answered(steps: Steps, reply: Reply) -> Steps:
    """Take steps, and answer with what goes wrong in them."""
    try:
        yield from steps
    except IsterError as error:
        reply(error)


# Producers


def _open_producer(session: "NativeSession", command: OpenProducer, reply: Reply) -> None:
    check_channel(session, command.channel)
    check_room(session, len(session.producers), "producers_per_connection_max")
    came_back = bool(command.kind or command.partitions)
    created = not came_back and not session.broker.catalog.is_taken(command.topic)
    partitions = session.broker.partitions(
        command.topic, known=command.partitions, kind=command.kind or ""
    )
    if partitions:
        reply(ProducerOpened(topic=command.topic, producer_id=0, partitions=partitions))
        return
    producer = session.broker.open_producer(command.topic, command.name)
    session.producers[command.channel] = producer
    stream = producer.stream
    reply(
        ProducerOpened(
            topic=command.topic,
            producer_id=producer.id,
            partitions=0,
            next_sequence=stream.sent.next_sequence(command.name) if stream is not None else 0,
            kind=producer.topic.kind,
            created=True if created and not _is_heard(producer.topic) else UNSET,
        )
    )


def _is_heard(topic: Topic | StreamTopic) -> bool:
    """Whether a live topic has subscriptions: those with a wildcard have a new one at once."""
    return isinstance(topic, Topic) and bool(topic.subscriptions)


def _close_producer(session: "NativeSession", command: CloseProducer, reply: Reply) -> None:
    producer = session.producers.pop(command.channel, None)
    if producer is not None:
        session.broker.close_producer(producer)
    reply(Done())


# Consumers


def _subscribe(session: "NativeSession", command: Subscribe, reply: Reply) -> None:
    channel = command.channel
    check_channel(session, channel)
    check_room(session, len(session.consumers) + len(session.opening), _CONSUMERS_MAX)
    session.opening.add(channel)

    def on_attached(found: Membership | IsterError) -> None:
        still_wanted = channel in session.opening
        session.opening.discard(channel)
        if isinstance(found, IsterError):
            reply(found)
            return
        if not still_wanted:
            # The connection is gone, or the client has closed the channel since.
            session.broker.subscribers.unsubscribe(found)
            reply(BadRequestError(f"channel {channel} was closed while it was opened"))
            return
        session.consumers[channel] = found
        partitions = session.broker.partition_count(command.topic)
        reply(
            Subscribed(
                active=found.active,
                partitions=partitions,
                leases=found.life,
                type=UNSET if found.type == command.type else found.type,
            )
        )

    chosen = Chosen() if command.chosen is UNSET else command.chosen
    options = SubscribeOptions(
        topic=command.topic,
        subscription=command.subscription,
        consumer=command.consumer,
        type=command.type,
        policy=command.policy,
        key_filters=command.key_filters,
        filters=command.filters,
        partitions=command.partitions,
        kind=command.kind or "",
        start=command.start,
        acks=command.acks,
        held=command.held,
        work_queues=chosen.work_queues,
        durable=chosen.durable,
        expire_after_ms=chosen.expire_after_ms,
        given=None if command.chosen is UNSET else chosen.given,
    )
    try:
        session.broker.subscribers.subscribe(
            options, on_attached, owner=session.owner, sink=session, channel=channel
        )
    except IsterError:
        session.opening.discard(channel)
        raise


def _close_consumer(session: "NativeSession", command: CloseConsumer, reply: Reply) -> None:
    session.opening.discard(command.channel)
    found = session.consumers.pop(command.channel, None)
    if found is not None:
        session.broker.subscribers.unsubscribe(found)
    timeline_consumer = session.timelines.consumers.pop(command.channel, None)
    if timeline_consumer is None:
        reply(Done())
    else:
        timeline_consumer.leave(command.kept, lambda: reply(Done()))


def _nack(session: "NativeSession", command: NackMessages, reply: Reply) -> Steps:
    yield from nack_with_reason(session.consumers.get(command.channel), command)
    reply(Done())


# Readers


def _open_reader(session: "NativeSession", command: OpenReader, reply: Reply) -> None:
    channel = command.channel
    check_channel(session, channel)
    check_room(session, len(session.readers) + len(session.opening), _CONSUMERS_MAX)
    partitions = session.broker.partition_count(command.topic)
    if partitions:
        reply(ReaderOpened(start=0, end=0, partitions=partitions))
        return
    session.opening.add(channel)

    def on_opened(reader: Reader | IsterError) -> None:
        still_wanted = channel in session.opening
        session.opening.discard(channel)
        if isinstance(reader, IsterError):
            reply(reader)
        elif not still_wanted:
            reader.close()
            reply(BadRequestError(f"channel {channel} was closed while it was opened"))
        else:
            session.readers[channel] = reader
            end = -1 if reader.end is None else reader.end
            number = reader.topic.record.topic
            reply(ReaderOpened(start=reader.position, end=end, number=number))

    try:
        open_reader(
            session.broker.streams_of(command.topic)[0],
            command.start,
            command.end,
            on_opened,
            turns=session.broker.turns,
            shared=session.broker.durables.shared,
            sink=session,
            channel=channel,
            whole=command.whole is True,
        )
    except IsterError:
        session.opening.discard(channel)
        raise


def _close_reader(session: "NativeSession", command: CloseReader, reply: Reply) -> None:
    session.opening.discard(command.channel)
    reader = session.readers.pop(command.channel, None)
    if reader is not None:
        reader.close()
    reply(Done())


# Transactions


def _begin(session: "NativeSession", command: BeginTransaction, reply: Reply) -> None:
    check_channel(session, command.channel)
    if len(session.transactions) >= TRANSACTIONS_MAX:
        raise BadRequestError(f"a connection has at most {TRANSACTIONS_MAX} open transactions")
    transaction = Transaction(command.transaction, client=session.owner)
    session.transactions[command.channel] = transaction
    session.begun_ms[command.channel] = session.broker.clock.monotonic_ms()
    reply(Done())


def _commit(session: "NativeSession", command: CommitTransaction, reply: Reply) -> Steps:
    transaction = end_transaction(session, command.channel)
    if transaction is None:
        raise BadRequestError(f"no transaction is open on channel {command.channel}")
    if transaction.error is not None:
        raise transaction.error
    check_commit(len(command.topics), len(command.acks))
    acks = []
    for channel, lease, start, end in command.acks:
        membership = session.consumers.get(channel)
        acks.append((membership.durables if membership else (), lease, start, end))

    def on_done(offsets: list[int] | IsterError) -> None:
        if isinstance(offsets, IsterError):
            reply(offsets)
        else:
            reply(TransactionCommitted(offsets=offsets, each=transaction.each))

    check = session.broker.long_commit_check(transaction, command.topics)
    if check is None:
        # Both look up all topics, in a turn each.
        yield None
        session.broker.commit(transaction, command.topics, acks, on_done)
        for storage in session.broker.streams.storages:
            hold_up_if_full(session, storage)
        return

    def on_checked(error: IsterError | None) -> None:
        try:
            if error is not None:
                raise error
            session.broker.commit(transaction, command.topics, acks, on_done, checked=True)
        except IsterError as refused:
            reply(refused)

    check_aside(session, check, on_checked, staged_bytes=transaction.size_bytes)


def _abort(session: "NativeSession", command: AbortTransaction, reply: Reply) -> None:
    end_transaction(session, command.channel)
    reply(Done())


# Each action takes its own command type, which the table's key guarantees.
ACTIONS: dict[type, Callable[["NativeSession", Any, Reply], Steps | None]] = {
    OpenProducer: _open_producer,
    CloseProducer: _close_producer,
    Subscribe: _subscribe,
    CloseConsumer: _close_consumer,
    NackMessages: _nack,
    OpenReader: _open_reader,
    CloseReader: _close_reader,
    BeginTransaction: _begin,
    CommitTransaction: _commit,
    AbortTransaction: _abort,
    **CRON_ACTIONS,
    **DELAYED_ACTIONS,
    **LAYOUT_ACTIONS,
    **STAGING_ACTIONS,
    **TIMELINE_ACTIONS,
}
