"""Danube's admin services of namespaces and topics."""

import asyncio
from collections.abc import Mapping
from contextlib import suppress
from typing import Any, Literal

import msgspec

from ister.base import find_partition, parse_topic, partition_name
from ister.base.errors import (
    BadNameError,
    BadRequestError,
    ConflictError,
    InvalidError,
    IsterError,
    TopicExistsError,
)
from ister.operations import (
    PAGE_MAX,
    CreateNamespace,
    CreateTopic,
    DeleteNamespace,
    DeleteTopic,
    DescribeNamespace,
    DescribeTopic,
    GrowTopic,
    ListTopics,
    ListTopicsOfNamespace,
    Operation,
    Right,
    TopicPage,
)
from ister.server.grpc.admin.codes import Codes, caller_of, coded, refusing, whole
from ister.server.grpc.admin.settings import SubscriptionSettings
from ister.server.grpc.calls.status import Refusal, StatusCode
from ister.server.grpc.messages import Handler, message
from ister.server.operations import BROKER_ID, Caller, Dispatcher

StreamOrLive = Literal["live", "stream"]
# By their numbers on the wire.
STRATEGIES: tuple[StreamOrLive, ...] = ("live", "stream")
DELIVERY = {"live": "NonReliable", "stream": "Reliable"}

# What Danube answers when something cannot be made or removed, whatever the reason; a storm that
# passes is told apart, and so is a name that is none.
CHANGING: Codes = (
    (BadNameError, StatusCode.INVALID_ARGUMENT),
    (InvalidError, StatusCode.NOT_FOUND),
    (ConflictError, StatusCode.NOT_FOUND),
)


class NamespaceAdmin:
    """`danube_admin.NamespaceAdmin`."""

    def __init__(self, dispatcher: Dispatcher) -> None:
        self._dispatcher = dispatcher

    def handlers(self) -> Mapping[str, Handler]:
        """Return what answers each method."""
        return {
            "GetNamespaceTopics": self._topics,
            "GetNamespacePolicies": self._policies,
            "CreateNamespace": coded(self._create, CHANGING),
            "DeleteNamespace": coded(self._delete, CHANGING),
        }

    async def _topics(self, request: Any, call: Any) -> Any:
        names = await _kinds(self._dispatcher, caller_of(call), request.name)
        # Here, and only here, Danube leaves out the first slash.
        return message("danube_admin.TopicListResponse")(topics=[name[1:] for name in names])

    async def _policies(self, request: Any, call: Any) -> Any:
        found = await self._dispatcher.run(DescribeNamespace(request.name), caller_of(call))
        text = msgspec.json.encode(found.policies).decode()
        return message("danube_admin.PolicyResponse")(policies=text)

    async def _create(self, request: Any, call: Any) -> Any:
        asked = CreateNamespace(request.name, exist_ok=False)
        await self._dispatcher.run(asked, caller_of(call))
        return message("danube_admin.NamespaceResponse")(success=True)

    async def _delete(self, request: Any, call: Any) -> Any:
        await self._dispatcher.run(DeleteNamespace(request.name), caller_of(call))
        return message("danube_admin.NamespaceResponse")(success=True)


class TopicAdmin:
    """The methods of `danube_admin.TopicAdmin` that are about topics."""

    def __init__(self, dispatcher: Dispatcher, settings: SubscriptionSettings) -> None:
        self._dispatcher = dispatcher
        self._broker = dispatcher.node.broker
        self._settings = settings
        self._making = asyncio.Lock()

    def handlers(self) -> Mapping[str, Handler]:
        """Return what answers each method."""
        return {
            "ListNamespaceTopics": self._list,
            "ListBrokerTopics": self._list_of_broker,
            "CreateTopic": coded(whole(self._create), CHANGING),
            "CreatePartitionedTopic": coded(whole(self._create_partitioned), CHANGING),
            "DeleteTopic": coded(whole(self._delete), CHANGING),
            "UnloadTopic": refusing(
                StatusCode.UNIMPLEMENTED, "there is no other broker that could take the topic"
            ),
            "DescribeTopic": self._describe,
        }

    # Topics

    async def _list(self, request: Any, call: Any) -> Any:
        return _infos(await _kinds(self._dispatcher, caller_of(call), request.name))

    async def _list_of_broker(self, request: Any, call: Any) -> Any:
        if request.broker_id != str(BROKER_ID):
            text = f"there is no broker {request.broker_id[:40]!r}: see ListBrokers"
            raise Refusal(StatusCode.NOT_FOUND, text)
        return _infos(await _kinds(self._dispatcher, caller_of(call), None))

    async def _create(self, request: Any, call: Any) -> Any:
        name = parse_topic(request.name)
        kind = _kind_of(request)
        partition = find_partition(name)
        asked: CreateTopic | GrowTopic
        if partition is None:
            asked = CreateTopic(name, kind, exist_ok=False)
        else:
            # To Danube, a partitioned topic is but the partitions that happen to be there.
            base, number = partition
            self._check_next(base, number)
            if number:
                asked = GrowTopic(base, number + 1, kind=kind)
            else:
                asked = CreateTopic(base, kind, partitions=1, exist_ok=False)
        await self._make(asked, request.schema_subject, caller_of(call))
        return message("danube_admin.TopicResponse")(success=True)

    async def _create_partitioned(self, request: Any, call: Any) -> Any:
        if not request.partitions:
            raise BadRequestError("a partitioned topic has 1 partition or more")
        name, partitions = parse_topic(request.base_name), request.partitions
        asked = CreateTopic(name, _kind_of(request), partitions=partitions, exist_ok=False)
        await self._make(asked, request.schema_subject, caller_of(call))
        return message("danube_admin.TopicResponse")(success=True)

    async def _delete(self, request: Any, call: Any) -> Any:
        await self._dispatcher.run(DeleteTopic(request.name), caller_of(call))
        # The topic is gone. What is left of its settings has no effect, and goes at the next start.
        with suppress(IsterError):
            await self._settings.forget(request.name)
        return message("danube_admin.TopicResponse")(success=True)

    async def _describe(self, request: Any, call: Any) -> Any:
        # Raises for a timeline, which Danube has no word for.
        self._broker.catalog.get(request.name)
        found = await self._dispatcher.run(DescribeTopic(request.name), caller_of(call))
        response = message("danube_admin.DescribeTopicResponse")(
            name=found.topic,
            subscriptions=found.subscriptions,
            broker_id=str(BROKER_ID),
            delivery=DELIVERY[found.kind],
        )
        if found.schema is not None:
            response.schema_subject = found.schema.subject
            response.schema_id = found.schema.schema_id
            response.schema_version = found.schema.version or found.schema.latest_version
            response.schema_type = found.schema.type
            response.compatibility_mode = found.schema.mode
        return response

    def _check_next(self, name: str, partition: int) -> None:
        """Raise unless a partitioned topic, there or not, can have that partition next."""
        count = self._broker.partition_count(name)
        if not count:
            self._broker.catalog.check_new(name)
        if partition < count:
            raise TopicExistsError(partition_name(name, partition), f"among {count} partitions")
        if partition > count:
            raise BadRequestError(f"the next partition of {name!r} is {count}, not {partition}")

    async def _make(self, asked: CreateTopic | GrowTopic, subject: str, caller: Caller) -> None:
        """Make a topic, or a partition of it, that follows a subject if one is named: or neither.

        It is bound before, so that no message comes first; and as a producer of Danube's would
        bind it: what does not fit is only told. A topic that is bound already stays as it is.
        """
        operation: Operation[Any] = asked
        if not subject:
            await self._dispatcher.run(operation, caller)
            return
        registry, topic = self._dispatcher.node.registry, asked.topic
        registry.subject(subject)  # It must be there, and the topic must not.
        if isinstance(asked, CreateTopic):
            self._broker.catalog.check_new(topic)
        self._dispatcher.admit(caller, Right.MANAGE, "bind_topic", topic)
        # One after the other: who finds the topic there must not unbind it for who has made it.
        async with self._making:
            was_bound = registry.find_binding(topic) is not None
            binding = await registry.bind(
                topic, subject, policy="warn", validate_payload=False, replace=False
            )
            try:
                await self._dispatcher.run(operation, caller)
            except IsterError:
                if not was_bound:
                    await registry.on_topic_deleted(binding)
                raise


async def _kinds(dispatcher: Dispatcher, caller: Caller, namespace: str | None) -> dict[str, str]:
    """Return the topics of a namespace, or all, with their kinds: those that Danube knows."""
    kinds: dict[str, str] = {}
    after = ""
    while True:
        asked: Operation[TopicPage]
        if namespace is None:
            asked = ListTopics(limit=PAGE_MAX, after=after)
        else:
            asked = ListTopicsOfNamespace(namespace=namespace, limit=PAGE_MAX, after=after)
        page = await dispatcher.run(asked, caller)
        kinds |= {row.topic: row.kind for row in page.rows if row.kind in DELIVERY}
        after = page.next
        if not after:
            return kinds


def _infos(kinds: Mapping[str, str]) -> Any:
    info = message("danube_admin.TopicInfo")
    return message("danube_admin.TopicInfoListResponse")(
        topics=[
            info(name=name, broker_id=str(BROKER_ID), delivery=DELIVERY[kind])
            for name, kind in kinds.items()
        ]
    )


def _kind_of(request: Any) -> StreamOrLive:
    number: int = request.dispatch_strategy
    if number not in range(len(STRATEGIES)):
        raise BadRequestError(f"dispatch strategy {number} is not one of 0, 1")
    return STRATEGIES[number]
