"""What each control command of a client does, and what it is answered."""

from collections.abc import Callable, Container
from typing import TYPE_CHECKING, Any

from ister.base.errors import BadRequestError, GoingAwayError, ProtocolError
from ister.broker import SubscribeOptions
from ister.wire import (
    BrokerDescription,
    CloseConsumer,
    CloseProducer,
    Command,
    CreateNamespace,
    CreateTopic,
    DeleteTopic,
    DescribeBroker,
    Done,
    ListNamespaces,
    ListSubscriptions,
    ListTopics,
    Namespaces,
    OpenProducer,
    ProducerOpened,
    Subscribe,
    Subscribed,
    Subscriptions,
    Topics,
)

if TYPE_CHECKING:
    from ister.server.native.session import NativeSession

CHANNEL_MAX = 0xFFFF_FFFF


def answer(session: "NativeSession", command: Command) -> Command:
    """Carry out `command` and return its reply. Raises what the client is to be told."""
    act = _ACTIONS.get(type(command))
    if act is None:
        raise ProtocolError(f"command {type(command).__name__} is not for a broker")
    return act(session, command)


def _create_topic(session: "NativeSession", command: CreateTopic) -> Command:
    session.broker.create_topic(command.topic, kind=command.kind, partitions=command.partitions)
    return Done()


def _delete_topic(session: "NativeSession", command: DeleteTopic) -> Command:
    session.broker.delete_topic(command.topic)
    return Done()


def _create_namespace(session: "NativeSession", command: CreateNamespace) -> Command:
    session.broker.create_namespace(command.namespace)
    return Done()


def _open_producer(session: "NativeSession", command: OpenProducer) -> Command:
    _check_open(session, command.channel, session.producers)
    session.check_room(len(session.producers), "producers_per_connection_max")
    partitions = session.broker.partitions(command.topic, known=command.partitions)
    if partitions:
        return ProducerOpened(topic=command.topic, producer_id=0, partitions=partitions)
    producer = session.broker.open_producer(command.topic, command.name)
    session.producers[command.channel] = producer
    return ProducerOpened(topic=command.topic, producer_id=producer.id, partitions=0)


def _close_producer(session: "NativeSession", command: CloseProducer) -> Command:
    producer = session.producers.pop(command.channel, None)
    if producer is not None:
        session.broker.close_producer(producer)
    return Done()


def _subscribe(session: "NativeSession", command: Subscribe) -> Command:
    _check_open(session, command.channel, session.consumers)
    session.check_room(len(session.consumers), "consumers_per_connection_max")
    subscription, consumer, active = session.broker.subscribe(
        SubscribeOptions(
            topic=command.topic,
            subscription=command.subscription,
            consumer=command.consumer,
            type=command.type,
            policy=command.policy,
            key_filters=command.key_filters,
            filters=command.filters,
            partitions=command.partitions,
        ),
        owner=session.client_id,
        sink=session,
        channel=command.channel,
    )
    session.consumers[command.channel] = (subscription, consumer)
    partitions = session.broker.partition_count(command.topic)
    return Subscribed(active=active, partitions=partitions)


def _close_consumer(session: "NativeSession", command: CloseConsumer) -> Command:
    found = session.consumers.pop(command.channel, None)
    if found is not None:
        session.broker.unsubscribe(*found)
    return Done()


def _list_topics(session: "NativeSession", command: ListTopics) -> Command:
    rows, after = session.broker.topics(command.pattern, after=command.after, limit=command.limit)
    return Topics(rows=rows, after=after)


def _list_subscriptions(session: "NativeSession", command: ListSubscriptions) -> Command:
    rows, after = session.broker.subscriptions(
        command.topic, after=command.after, limit=command.limit
    )
    return Subscriptions(rows=rows, after=after)


def _list_namespaces(session: "NativeSession", _: ListNamespaces) -> Command:
    return Namespaces(rows=session.broker.namespaces())


def _describe_broker(session: "NativeSession", _: DescribeBroker) -> Command:
    return BrokerDescription(report=session.broker.report())


def _check_open(session: "NativeSession", channel: int, held: Container[int]) -> None:
    if session.door.closing:
        raise GoingAwayError("shutting down")
    if channel in held:
        raise BadRequestError(f"channel {channel} is in use")
    if not 0 < channel <= CHANNEL_MAX:
        raise BadRequestError(f"channel {channel} is not 1 to {CHANNEL_MAX}")


# Each action takes its own command type, which the table's key guarantees.
_ACTIONS: dict[type, Callable[["NativeSession", Any], Command]] = {
    CreateTopic: _create_topic,
    DeleteTopic: _delete_topic,
    CreateNamespace: _create_namespace,
    OpenProducer: _open_producer,
    CloseProducer: _close_producer,
    Subscribe: _subscribe,
    CloseConsumer: _close_consumer,
    ListTopics: _list_topics,
    ListSubscriptions: _list_subscriptions,
    ListNamespaces: _list_namespaces,
    DescribeBroker: _describe_broker,
}
