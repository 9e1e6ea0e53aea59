"""Control commands: what travels in CONTROL frames, as MessagePack maps. Spec: docs/protocol.md.

A command from the client is a request and is answered with the same sequence number by a reply
or by `ErrorReply`. A command from the broker with sequence 0 is a notice. Decoding checks every
type; names and ranges are checked by the broker, which knows the rules.
"""

from typing import Annotated, Literal, TypeAlias

import msgspec
from msgspec import UNSET, Meta, UnsetType

from ister.base import (
    LATEST,
    AckSettings,
    BrokerReport,
    Position,
    StreamChanges,
    StreamSettings,
    SubscriptionReport,
    TimelineSettings,
    TopicReport,
)
from ister.base.errors import FieldValue, IsterError, ProtocolError, from_wire
from ister.base.limits import ACKS_PER_FRAME_MAX, IN_FLIGHT_COUNT_MAX, KEPT_COUNT_MAX
from ister.wire.cron import CronCommand
from ister.wire.dead_letters import DeadLetterCommand
from ister.wire.delayed import SendDelayed
from ister.wire.layouts import LayoutCommand
from ister.wire.schemas import SchemaCommand
from ister.wire.staging import StagingCommand
from ister.wire.tagged import Listed, Mapped, Tagged
from ister.wire.timelines import TimelineCommand

PROTOCOL_VERSION_MIN = 1
PROTOCOL_VERSION_MAX = 1
# Of what is wrong with a command, as the error tells it.
ERROR_CHARS_MAX = 200


# The handshake


class Hello(Tagged):
    """First frame of a client."""

    # A random word that stays the same over reconnects. Others may learn of it.
    client_id: str
    version_min: int = PROTOCOL_VERSION_MIN
    version_max: int = PROTOCOL_VERSION_MAX
    agent: str = ""
    codecs: Listed[str] = msgspec.field(default_factory=list)
    # Who it is, for a broker that asks.
    token: str = ""
    # At least 128 random bits, sent only to the broker. A consumer that reconnects with the same
    # secret replaces its old connection, even if the broker has not yet noticed that this is dead.
    # Without a secret, no connection can be taken over.
    secret: str = ""

    def __repr__(self) -> str:
        # Without token and secret: a hello may come to stand in a log.
        return f"Hello(client_id={self.client_id!r}, agent={self.agent!r})"


class Welcome(Tagged):
    """The broker's answer to `Hello`: the version to speak and what it accepts."""

    version: int
    broker: str
    session: int
    codecs: list[str]
    message_bytes_max: int
    batch_bytes_max: int
    heartbeat_ms: int


class ErrorReply(Tagged):
    """What went wrong: with a request, with a publish (channel set), or fatally (both zero)."""

    code: int
    text: str
    fields: dict[str, FieldValue] = msgspec.field(default_factory=dict)


class GoingAway(Tagged):
    """The broker shuts down: finish what is under way and connect again elsewhere or later."""

    reason: str


# Topics


class CreateTopic(Tagged):
    """Make a topic, or do nothing when it exists with the same settings.

    With `exist_ok` false, a topic that exists is an error whatever its settings.
    """

    topic: str
    kind: str = "live"
    partitions: int = 0
    # Of a stream topic only; absent: the defaults.
    stream: StreamSettings | None = None
    # Of a timeline or priority topic only; absent: the defaults.
    timeline: TimelineSettings | None = None
    exist_ok: bool | UnsetType = UNSET


class UpdateTopic(Tagged):
    """Change settings of a stream topic, of all its partitions; the others stay as they are."""

    topic: str
    changes: StreamChanges


class PurgeTopic(Tagged):
    """Drop the messages of a stream before an offset, or all when `before` is negative."""

    topic: str
    before: int = -1


class Purged(Tagged):
    """So many messages were dropped."""

    messages: int


class DeleteTopic(Tagged):
    """Remove a topic with its partitions; its consumers and producers are told."""

    topic: str


class CreateNamespace(Tagged):
    """Make a namespace."""

    namespace: str


class DeleteNamespace(Tagged):
    """Remove a namespace that has no topics."""

    namespace: str


class Done(Tagged):
    """The request was carried out."""


class OpenProducer(Tagged):
    """Use `channel` for publishing to `topic`, which is created when it does not exist.

    `partitions` is for a partition whose topic a restarted broker may have forgotten: the number
    the client knows, so that the topic can be made again as it was. `kind` is of a client that
    comes back: a live topic is made again, a stream is not.
    """

    topic: str
    name: str
    channel: int
    partitions: int = 0
    kind: Literal["live", "stream"] | UnsetType = UNSET


class ProducerOpened(Tagged):
    """`partitions` above zero: nothing was opened; open one producer for each partition."""

    topic: str
    producer_id: int
    partitions: int
    # Of a stream: the number of this producer's next message. A producer that comes back under
    # its name goes on there; what it sends again below that is not stored again.
    next_sequence: int = 0
    # `live` or `stream`.
    kind: str = "live"
    # The topic did not exist, nobody is subscribed to it, and now it is there.
    created: bool | UnsetType = UNSET


class PublishedEach(Tagged):
    """Some messages of a batch were known by their ids, and not stored again.

    `offsets` has one number for each message: its offset, or `~offset` when it was known.
    """

    offsets: list[int]


class CloseProducer(Tagged):
    """Free a producer's channel."""

    channel: int


class Chosen(msgspec.Struct, omit_defaults=True):
    """What an application chose for a subscription on streams."""

    # The names of the settings that an existing subscription gets, here, in the command and in its
    # `acks`; its others stay.
    given: Listed[str] = msgspec.field(default_factory=list)
    # Of a pattern: whether it covers work queues, of which each has one subscription only.
    work_queues: bool = False
    # One that is not ends with its last consumer, as on live topics.
    durable: bool = True
    # It ends when it has had no consumers for so long; 0: never.
    expire_after_ms: int = 0


class Subscribe(Tagged):
    """Use `channel` for a consumer. `topic` may be a pattern. CREDIT frames start the flow."""

    topic: str
    subscription: str
    consumer: str
    channel: int
    type: str = "exclusive"
    policy: str = "least_loaded"
    key_filters: Listed[str] = msgspec.field(default_factory=list)
    filters: Mapped[str] = msgspec.field(default_factory=dict)
    # What `subscribed` said, when the client comes back after a lost connection.
    partitions: int = 0
    # On streams: where a subscription that does not exist yet begins, and how it treats acks.
    start: Position = LATEST
    acks: AckSettings | None = None
    # Of a client that comes back: the leases it still holds. What else it was sent got lost on
    # the way, and is delivered again at once. Absent: it does not say.
    held: Annotated[list[int], Meta(max_length=IN_FLIGHT_COUNT_MAX)] | None = None
    # Absent: a client that does not say what the application chose.
    chosen: Chosen | msgspec.UnsetType = msgspec.UNSET
    # Of a client that comes back: see `OpenProducer`.
    kind: Literal["live", "stream"] | UnsetType = UNSET


class Subscribed(Tagged):
    """The consumer is attached. `active` is false for a standby of a failover subscription.

    `leases` names the life of the broker that leases belong to. A client that comes back and is
    told another than before drops what it has not taken: all of that is delivered again.
    """

    active: bool
    partitions: int = 0
    leases: int = 0
    # The type of the subscription, when it is not the one in `subscribe`.
    type: str | msgspec.UnsetType = msgspec.UNSET


class CloseConsumer(Tagged):
    """Detach a consumer; what it was not sent goes to the others.

    Of a timeline: so does what it was sent and has not handed over, when it says what it has. Also
    what was on its way to it. Answered when that is stored.
    """

    channel: int
    # The ids of messages that the application has.
    kept: Annotated[list[str], Meta(max_length=KEPT_COUNT_MAX)] | None = None


class DeleteSubscription(Tagged):
    """Remove a durable subscription with its position; its consumers are closed."""

    topic: str
    subscription: str


class UpdateSubscription(Tagged):
    """Change the settings of a durable subscription that are `given`, as in `Subscribe`.

    Also while it has consumers; its type only without.
    """

    topic: str
    subscription: str
    chosen: Chosen
    type: str = "exclusive"
    policy: str = "least_loaded"
    key_filters: Listed[str] = msgspec.field(default_factory=list)
    filters: Mapped[str] = msgspec.field(default_factory=dict)
    acks: AckSettings | None = None


class Seek(Tagged):
    """Move a durable subscription to another place; what is in flight is void."""

    topic: str
    subscription: str
    to: Position


class SaveCursor(Tagged):
    """Keep the place of a durable subscription under a name, to seek to it later."""

    topic: str
    subscription: str
    name: str


class DropCursor(Tagged):
    """Forget a saved cursor."""

    topic: str
    subscription: str
    name: str


class NackMessages(Tagged):
    """Give leased messages back as NACK does, and say why; with `reject` for good.

    With `unused` no attempt counts and the delays do not matter: the application has not received
    these messages. The credit of the consumer is withdrawn before they are delivered again.
    """

    channel: int
    # As in a NACK frame: lease, first offset, end offset, milliseconds.
    runs: Annotated[list[tuple[int, int, int, int]], Meta(max_length=ACKS_PER_FRAME_MAX)]
    reason: str = ""
    reject: bool = False
    unused: bool | UnsetType = UNSET


class PauseSubscription(Tagged):
    """Stop or resume the deliveries of a durable subscription, for all of its consumers."""

    topic: str
    subscription: str
    paused: bool


class OpenReader(Tagged):
    """Use `channel` for reading a stream; DELIVER frames come as CREDIT frames allow.

    `end` absent: go on with what is published. A `latest` end is where the stream ends now.
    Nothing is acknowledged, and nobody else is affected. With `whole` the reader ends with
    `CompactedError` if compaction has dropped some of what the stream held at `end`.
    """

    topic: str
    channel: int
    start: Position
    end: Position | None = None
    whole: bool | msgspec.UnsetType = msgspec.UNSET


class ReaderOpened(Tagged):
    """What will be read: offsets `start` to `end`; `end` is -1 for a reader that follows.

    `partitions` above zero: nothing was opened; open one reader for each partition.
    """

    start: int
    end: int
    partitions: int = 0
    # Of the stream: given to one topic only, for ever.
    number: int = 0


class CloseReader(Tagged):
    """Free a reader's channel."""

    channel: int


# Transactions


class BeginTransaction(Tagged):
    """Use `channel` for a transaction. STAGE frames add batches to it.

    `transaction` is a word of the client's choice: a commit that is repeated under the same word
    happens once.
    """

    channel: int
    transaction: str


class CommitTransaction(Tagged):
    """Carry out everything staged on `channel`, and the acks, or nothing of it.

    The sequence of a STAGE frame is the slot of its topic in `topics`. An ack is the channel of
    a consumer of this connection and a run: lease, first offset, end offset. `channel` is free
    afterwards, whatever the answer.
    """

    channel: int
    topics: Listed[str]
    acks: Listed[tuple[int, int, int, int]] = msgspec.field(default_factory=list)


class TransactionCommitted(Tagged):
    """The base offset of every staged batch, in the order they were staged.

    Of a batch with messages that were known before by their ids, `each` has the offset of each
    message, as in `PublishedEach`.
    """

    offsets: list[int]
    each: dict[int, list[int]] = msgspec.field(default_factory=dict)


class AbortTransaction(Tagged):
    """Forget everything staged on `channel`."""

    channel: int


# Notices of the broker


class TopicNumber(Tagged):
    """From now on DELIVER frames call `topic` by `number`."""

    number: int
    topic: str


class SlowConsumer(Tagged):
    """The consumer on this frame's channel was too slow: so many messages were dropped so far."""

    dropped: int


class ActiveChanged(Tagged):
    """The standby consumer on this frame's channel was promoted."""

    active: bool


class NoResponder(Tagged):
    """These requests of this client reached nobody."""

    requests: list[int]


class ReaderEnded(Tagged):
    """The reader on this frame's channel has had everything up to its end, or broke off.

    `code` is 0 at the end, else that of an error as in `ErrorReply`. The channel is free.
    """

    code: int = 0
    text: str = ""
    fields: dict[str, FieldValue] = msgspec.field(default_factory=dict)


class ConsumerClosed(Tagged):
    """The broker closed the consumer on this frame's channel.

    `code` is 0, or that of the error that closed it, as in `ErrorReply`.
    """

    reason: str
    code: int = 0
    text: str = ""
    fields: dict[str, FieldValue] = msgspec.field(default_factory=dict)


# Listings


class ListTopics(Tagged):
    """Ask for topics by name, a page at a time."""

    pattern: str = ""
    after: str = ""
    limit: int = 1_000


class ListSubscriptions(Tagged):
    """Ask for subscriptions, of one topic or of all."""

    topic: str = ""
    after: str = ""
    limit: int = 1_000


class ListNamespaces(Tagged):
    """Ask for the namespaces."""


class DescribeBroker(Tagged):
    """Ask for the broker's own figures."""


class Topics(Tagged):
    """A page of topics. `after` is what to ask with for the next page, empty at the end."""

    rows: list[TopicReport]
    after: str


class Subscriptions(Tagged):
    """A page of subscriptions."""

    rows: list[SubscriptionReport]
    after: str


class Namespaces(Tagged):
    """The namespaces."""

    rows: list[str]


class BrokerDescription(Tagged):
    """The broker's own figures."""

    report: BrokerReport


Command: TypeAlias = (
    Hello
    | Welcome
    | ErrorReply
    | GoingAway
    | CreateTopic
    | UpdateTopic
    | PurgeTopic
    | Purged
    | DeleteTopic
    | CreateNamespace
    | DeleteNamespace
    | Done
    | OpenProducer
    | ProducerOpened
    | PublishedEach
    | CloseProducer
    | Subscribe
    | Subscribed
    | CloseConsumer
    | DeleteSubscription
    | UpdateSubscription
    | Seek
    | SaveCursor
    | DropCursor
    | NackMessages
    | PauseSubscription
    | OpenReader
    | ReaderOpened
    | CloseReader
    | BeginTransaction
    | CommitTransaction
    | TransactionCommitted
    | AbortTransaction
    | ReaderEnded
    | TopicNumber
    | SlowConsumer
    | ActiveChanged
    | ConsumerClosed
    | NoResponder
    | ListTopics
    | ListSubscriptions
    | ListNamespaces
    | DescribeBroker
    | Topics
    | Subscriptions
    | Namespaces
    | BrokerDescription
    | SchemaCommand
    | LayoutCommand
    | StagingCommand
    | TimelineCommand
    | CronCommand
    | DeadLetterCommand
    | SendDelayed
)

_decoder: msgspec.msgpack.Decoder[Command] = msgspec.msgpack.Decoder(Command)
encode_command = msgspec.msgpack.Encoder().encode


def decode_command(body: bytes | memoryview) -> Command:
    """Return the command in the body of a CONTROL frame, or raise `ProtocolError`."""
    try:
        return _decoder.decode(body)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
        # It may quote all that a stranger has sent, and goes into the log.
        shown = str(error)[:ERROR_CHARS_MAX]
        raise ProtocolError(f"control frame is no known command: {shown}") from error


def error_reply(error: IsterError) -> ErrorReply:
    """Return `error` as it travels over the wire."""
    return ErrorReply(code=error.code, text=str(error), fields=error.fields())


def error_of(reply: ErrorReply | ReaderEnded | ConsumerClosed) -> IsterError:
    """Return the error in a peer's `ErrorReply`, or in a notice whose code is not 0."""
    return from_wire(reply.code, reply.fields, reply.text)
