"""Consumers of Danube's clients: Subscribe, ReceiveMessages, Ack and Nack.

Always true:
- the same name on the same subscription is the same consumer, with the same id, also after a
  restart; whoever comes second takes the place of the first;
- an acknowledgement that comes too late, twice or for nothing is answered as a good one: Danube's
  clients give any other answer to the application;
- an acknowledgement counts when it is answered. It is in the journal with the next group, so that
  a crash may bring the message once more.
"""

import asyncio
from typing import Any

from ister.base import parse_plain, parse_topic
from ister.base.errors import BadRequestError, GoingAwayError, IsterError, TopicNotFoundError
from ister.base.limits import NACK_DELAY_MS_MAX
from ister.broker import Broker
from ister.server.grpc.calls.calls import Reply
from ister.server.grpc.calls.status import Refusal, StatusCode, code_of
from ister.server.grpc.leases import Held, Leases
from ister.server.grpc.messages import message
from ister.server.grpc.receiver import AcksOf, Receiver
from ister.server.grpc.roll import ConsumerRecord, Roll, id_of
from ister.subscriptions import check_globs
from ister.telemetry import Occasions
from ister.wire import BACKOFF_DELAY

ConsumerResponse = message("danube.ConsumerResponse")
AckRequest = message("danube.AckRequest")
AckResponse = message("danube.AckResponse")
NackRequest = message("danube.NackRequest")
NackResponse = message("danube.NackResponse")

TYPES = ("exclusive", "shared", "failover", "key_shared")
# Clients ask every five seconds whether their consumer is well.
SILENCE_MS = 15_000
# What a stream that cannot be opened takes to say so: a Python client tries again at once, for
# ever.
FAILED_S = 0.5


class Consumers:
    """Danube's consumers of one port: subscribes them and handles their acks and nacks."""

    def __init__(self, broker: Broker, roll: Roll, acks_of: AcksOf) -> None:
        self.closing = False
        # How clients reach this broker.
        self.broker_url = ""
        self._broker = broker
        self._roll = roll
        self._acks_of = acks_of
        self._leases = Leases()
        self._told = Occasions(broker.clock.monotonic_ms)
        # Those with a place in their subscription, or about to have one.
        self._receivers: dict[int, Receiver] = {}

    async def subscribe(self, request: Any, context: Any) -> Any:
        """Give a consumer its place in a subscription."""
        self._check_open()
        record = self._record(request)
        client_id = id_of(record.topic, record.subscription, record.name)
        receiver = self._receivers.get(client_id)
        if receiver is None:
            receiver = self._add(client_id, record)
        record.day = receiver.record.day
        if record != receiver.record or receiver.streaming or not receiver.attached:
            receiver.record = record
            receiver.take_over()
            await self._attach(client_id, receiver)
        receiver.address = context.peer()
        receiver.seen_ms = self._broker.clock.monotonic_ms()
        self._roll.enroll_consumer(client_id, record)
        # A Python client has nothing but this id after a restart.
        await self._roll.saved()
        return ConsumerResponse(
            request_id=request.request_id, consumer_id=client_id, consumer_name=record.name
        )

    async def receive(self, request: Any, context: Any) -> None:
        """Write messages until the stream ends."""
        self._check_open()
        client_id = request.consumer_id
        record = self._roll.consumers.get(client_id)
        if record is None:
            await asyncio.sleep(FAILED_S)
            raise Refusal(
                StatusCode.UNAVAILABLE, f"consumer {client_id} is not known: subscribe again"
            )
        receiver = self._receivers.get(client_id)
        if receiver is None:
            receiver = self._add(client_id, record)
        receiver.address = context.peer()
        self._roll.use(client_id, record)
        try:
            await receiver.stream(context)
        except IsterError as error:
            await asyncio.sleep(FAILED_S)
            code = code_of(error)
            if code is StatusCode.NOT_FOUND:
                # That would stop some clients for ever, which should ask for the topic anew.
                code = StatusCode.UNAVAILABLE
            raise Refusal(code, f"[{error.code}] {error}") from error
        finally:
            self._drop(client_id, receiver)

    def ack(self, data: bytes, reply: Reply) -> None:
        """Acknowledge one message."""
        request = AckRequest.FromString(data)
        held = self._take(request)
        if held is not None:
            offset = request.msg_id.topic_offset
            held.membership.ack([(held.lease, offset, offset + 1)])
        reply(AckResponse(request_id=request.request_id).SerializeToString())

    def nack(self, data: bytes, reply: Reply) -> None:
        """Give one message back, to be delivered again."""
        request = NackRequest.FromString(data)
        held = self._take(request)
        if held is not None:
            offset = request.msg_id.topic_offset
            delay_ms = BACKOFF_DELAY
            if request.HasField("delay_ms"):
                delay_ms = _delay_ms(held, request.delay_ms)
            run = (held.lease, offset, offset + 1, delay_ms)
            held.membership.nack([run], BACKOFF_DELAY, request.reason)
        reply(NackResponse(request_id=request.request_id).SerializeToString())

    def is_known(self, client_id: int) -> bool:
        """Whether a consumer is one of ours, and its topic there."""
        record = self._roll.consumers.get(client_id)
        if record is None or record.topic not in self._broker.catalog.topics:
            return False
        self._roll.use(client_id, record)
        receiver = self._receivers.get(client_id)
        if receiver is not None:
            receiver.seen_ms = self._broker.clock.monotonic_ms()
        return True

    def sweep(self) -> None:
        """Take their places from those that have no stream and were not heard of."""
        heard_ms = self._broker.clock.monotonic_ms() - SILENCE_MS
        for client_id, receiver in list(self._receivers.items()):
            waits = receiver.streaming or receiver.attaching
            if not waits and receiver.seen_ms < heard_ms:
                receiver.detach()
                self._drop(client_id, receiver)

    def close(self) -> None:
        """End every stream."""
        self.closing = True
        for receiver in self._receivers.values():
            receiver.end(Refusal(StatusCode.UNAVAILABLE, "the broker is shutting down"))

    # Inner workings

    def _check_open(self) -> None:
        if self.closing:
            raise GoingAwayError("shutting down")

    def _record(self, request: Any) -> ConsumerRecord:
        """Return what a client asks for, checked as far as the broker does not."""
        name = parse_topic(request.topic_name)
        topic = self._broker.catalog.topics.get(name)
        if topic is None:
            raise TopicNotFoundError(name)
        if not 0 <= request.subscription_type < len(TYPES):
            raise BadRequestError(f"there is no subscription type {request.subscription_type}")
        type_ = TYPES[request.subscription_type]
        # Others have no use for them, and every record is kept.
        key_filters = list(request.key_filters) if type_ == "key_shared" else []
        check_globs({}, key_filters)
        return ConsumerRecord(
            topic=name,
            subscription=parse_plain(request.subscription, "a subscription name"),
            name=parse_plain(request.consumer_name, "a consumer name"),
            type=type_,
            key_filters=key_filters,
            kind=topic.kind,
        )

    def _add(self, client_id: int, record: ConsumerRecord) -> Receiver:
        receiver = Receiver(
            self._broker,
            self._leases,
            record,
            acks_of=self._acks_of,
            broker_url=self.broker_url,
            told=self._told,
        )
        self._receivers[client_id] = receiver
        return receiver

    def _drop(self, client_id: int, receiver: Receiver) -> None:
        """Forget a consumer that has neither a place nor a stream, and will not have one."""
        used = receiver.streaming or receiver.attached or receiver.attaching
        if not used and self._receivers.get(client_id) is receiver:
            del self._receivers[client_id]

    async def _attach(self, client_id: int, receiver: Receiver) -> None:
        try:
            await receiver.attach()
        except BaseException:
            self._drop(client_id, receiver)
            raise

    def _take(self, request: Any) -> Held | None:
        """Return who has the message that is settled, if anybody."""
        if not request.HasField("msg_id"):
            raise BadRequestError("msg_id is missing")
        msg_id = request.msg_id
        return self._leases.take(msg_id.topic_name, request.subscription_name, msg_id.topic_offset)


def _delay_ms(held: Held, asked_ms: int) -> int:
    """Return how long to wait: as long as the client asks, within what the policy says."""
    if not held.membership.durables:
        return asked_ms
    acks = held.membership.durables[0].acks
    policy_ms = acks.delay_ms(held.attempt)
    # One delay alone is a fixed one, which says nothing of how long a client may ask for.
    longest_ms = max(acks.backoff_ms) if len(acks.backoff_ms) > 1 else NACK_DELAY_MS_MAX
    return min(max(policy_ms, asked_ms), max(longest_ms, policy_ms))
