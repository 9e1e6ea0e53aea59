"""Danube's admin services of namespaces and topics."""

import asyncio
from collections.abc import Callable, Coroutine, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import msgspec

from ister.base import find_partition, parse_topic
from ister.base.errors import (
    BadNameError,
    BadRequestError,
    ConflictError,
    InvalidError,
    IsterError,
)
from ister.server.admin import BROKER_ID, Admin
from ister.server.grpc.admin_codes import Codes, coded, refusing, whole
from ister.server.grpc.admin_settings import SubscriptionSettings
from ister.server.grpc.messages import Handler, message
from ister.server.grpc.status import Refusal, StatusCode

if TYPE_CHECKING:
    from ister.registry import Registry

# By their numbers on the wire.
STRATEGIES = ("live", "stream")
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

    def __init__(self, admin: Admin) -> None:
        self._admin = admin

    def handlers(self) -> Mapping[str, Handler]:
        """Return what answers each method."""
        return {
            "GetNamespaceTopics": self._topics,
            "GetNamespacePolicies": self._policies,
            "CreateNamespace": coded(self._create, CHANGING),
            "DeleteNamespace": coded(self._delete, CHANGING),
        }

    async def _topics(self, request: Any, _: object) -> Any:
        self._admin.namespaces.check(request.name)
        names = sorted(topic.name for topic in self._admin.topics.find(namespace=request.name))
        # Here, and only here, Danube leaves out the first slash.
        return message("danube_admin.TopicListResponse")(topics=[name[1:] for name in names])

    async def _policies(self, request: Any, _: object) -> Any:
        policies = self._admin.namespaces.policies(request.name)
        text = msgspec.json.encode(policies).decode()
        return message("danube_admin.PolicyResponse")(policies=text)

    async def _create(self, request: Any, _: object) -> Any:
        await self._admin.namespaces.create(request.name)
        return message("danube_admin.NamespaceResponse")(success=True)

    async def _delete(self, request: Any, _: object) -> Any:
        await self._admin.namespaces.delete(request.name)
        return message("danube_admin.NamespaceResponse")(success=True)


class TopicAdmin:
    """The methods of `danube_admin.TopicAdmin` that are about topics."""

    def __init__(self, admin: Admin, settings: SubscriptionSettings) -> None:
        self._admin = admin
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

    async def _list(self, request: Any, _: object) -> Any:
        self._admin.namespaces.check(request.name)
        return self._infos(namespace=request.name)

    async def _list_of_broker(self, request: Any, _: object) -> Any:
        if request.broker_id != str(BROKER_ID):
            text = f"there is no broker {request.broker_id[:40]!r}: see ListBrokers"
            raise Refusal(StatusCode.NOT_FOUND, text)
        return self._infos()

    def _infos(self, *, namespace: str = "") -> Any:
        info = message("danube_admin.TopicInfo")
        found = {t.name: t.kind for t in self._admin.topics.find(namespace=namespace)}
        return message("danube_admin.TopicInfoListResponse")(
            topics=[
                info(name=name, broker_id=str(BROKER_ID), delivery=DELIVERY[kind])
                for name, kind in sorted(found.items())
            ]
        )

    async def _create(self, request: Any, _: object) -> Any:
        name = parse_topic(request.name)
        kind = _kind_of(request)
        subject = self._known_subject(request)
        partition = find_partition(name)
        if partition is None:
            self._admin.topics.check_new(name)
            await self._make(
                name, subject, lambda: self._admin.topics.create(name, kind=kind, exist_ok=False)
            )
        else:
            # To Danube, a partitioned topic is but the partitions that happen to be there.
            base, number = partition
            self._admin.topics.check_next(base, number)
            await self._make(
                base, subject, lambda: self._admin.topics.add_partition(base, number, kind=kind)
            )
        return message("danube_admin.TopicResponse")(success=True)

    async def _create_partitioned(self, request: Any, _: object) -> Any:
        if not request.partitions:
            raise BadRequestError("a partitioned topic has 1 partition or more")
        name, partitions = parse_topic(request.base_name), request.partitions
        kind = _kind_of(request)
        subject = self._known_subject(request)
        self._admin.topics.check_new(name)
        await self._make(
            name,
            subject,
            lambda: self._admin.topics.create(
                name, kind=kind, partitions=partitions, exist_ok=False
            ),
        )
        return message("danube_admin.TopicResponse")(success=True)

    async def _delete(self, request: Any, _: object) -> Any:
        await self._admin.topics.delete(request.name)
        # The topic is gone. What is left of its settings has no effect, and goes at the next start.
        with suppress(IsterError):
            await self._settings.forget(request.name)
        return message("danube_admin.TopicResponse")(success=True)

    async def _describe(self, request: Any, _: object) -> Any:
        # Raises for a timeline, which Danube has no word for.
        self._admin.broker.catalog.get(request.name)
        found = self._admin.topics.describe(request.name)
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

    def _known_subject(self, request: Any) -> str:
        """Return the subject that a topic is to be bound to, empty for none; it must be there."""
        subject: str = request.schema_subject
        if subject:
            registry_of(self._admin).subject(subject)
        return subject

    async def _make(
        self, topic: str, subject: str, make: Callable[[], Coroutine[Any, Any, None]]
    ) -> None:
        """Make a topic, or a partition of it, that follows a subject if one is named: or neither.

        It is bound before, so that no message comes first; and as a producer of Danube's would
        bind it: what does not fit is only told. A topic that is bound already stays as it is.
        """
        if not subject:
            await make()
            return
        registry = registry_of(self._admin)
        # One after the other: who finds the topic there must not unbind it for who has made it.
        async with self._making:
            was_bound = registry.find_binding(topic) is not None
            binding = await registry.bind(
                topic, subject, policy="warn", validate_payload=False, replace=False
            )
            try:
                await make()
            except IsterError:
                if not was_bound:
                    await registry.on_topic_deleted(binding)
                raise


def registry_of(admin: Admin) -> "Registry":
    """Return the schema registry, or raise: a broker may have none."""
    if admin.registry is None:
        raise BadRequestError("this broker keeps no schemas")
    return admin.registry


def _kind_of(request: Any) -> str:
    number: int = request.dispatch_strategy
    if number not in range(len(STRATEGIES)):
        raise BadRequestError(f"dispatch strategy {number} is not one of 0, 1")
    return STRATEGIES[number]
