"""Danube's admin service of subscriptions: the rest of `danube_admin.TopicAdmin`."""

from collections.abc import Callable, Mapping
from dataclasses import asdict, replace
from functools import partial
from typing import Any

from ister.base import AckSettings, SubscriptionReport, parse_plain, partition_name
from ister.base.errors import (
    BadRequestError,
    SubscriptionNotFoundError,
    TopicNotFoundError,
)
from ister.operations import (
    ChangeSettings,
    DeleteSubscription,
    DescribeSettings,
    DescribeSubscription,
    DescribeTopic,
)
from ister.server.grpc.admin.codes import Codes, caller_of, coded, whole
from ister.server.grpc.admin.policies import FailurePolicy, apply_policy, check_unacked
from ister.server.grpc.admin.settings import SubscriptionSettings
from ister.server.grpc.admin.topics import CHANGING
from ister.server.grpc.calls.status import Refusal, StatusCode
from ister.server.grpc.messages import Handler, message
from ister.server.operations import Caller, Dispatcher, find_subscription

# By their numbers on the wire.
SUBSCRIPTION_TYPES = ("exclusive", "shared", "failover", "key_shared")

# Settings are for what exists and is durable.
_SETTING: Codes = ((TopicNotFoundError, StatusCode.FAILED_PRECONDITION),)


class SubscriptionAdmin:
    """Answers Danube's admin calls about subscriptions.

    A Danube client subscribes to each partition by itself. So a partitioned topic's subscription
    of a name is all of those on its partitions, beside that of our own clients on the whole.
    """

    def __init__(self, dispatcher: Dispatcher, settings: SubscriptionSettings) -> None:
        self._dispatcher = dispatcher
        self._broker = dispatcher.node.broker
        self._settings = settings

    def handlers(self) -> Mapping[str, Handler]:
        """Return what answers each method."""
        return {
            "ListSubscriptions": self._list,
            "Unsubscribe": coded(whole(self._unsubscribe), CHANGING),
            "SetSubscriptionFailurePolicy": coded(whole(self._set_policy), _SETTING),
            "GetSubscriptionFailurePolicy": self._get_policy,
            "SetSubscriptionDispatchConfig": coded(whole(self._set_dispatch), _SETTING),
            "GetSubscriptionDispatchConfig": self._get_dispatch,
        }

    async def _list(self, request: Any, call: Any) -> Any:
        self._broker.catalog.get(request.name)
        found = await self._dispatcher.run(DescribeTopic(request.name), caller_of(call))
        names = found.subscriptions
        return message("danube_admin.SubscriptionListResponse")(subscriptions=names)

    async def _unsubscribe(self, request: Any, call: Any) -> Any:
        caller = caller_of(call)
        topic, name = request.topic, request.subscription
        topics = self._topics_with(topic, name)
        if not topics:
            raise SubscriptionNotFoundError(topic, name)
        for each in topics:
            if (await self._dispatcher.run(DescribeSubscription(each, name), caller)).consumers:
                text = f"subscription {name!r} on {each!r} has consumers: close them first"
                raise Refusal(StatusCode.NOT_FOUND, text)
        for each in topics:
            await self._dispatcher.run(DeleteSubscription(each, name), caller)
            await self._settings.forget(each, name)
        await self._settings.forget(topic, name)
        return message("danube_admin.SubscriptionResponse")(success=True)

    # Settings

    async def _set_policy(self, request: Any, call: Any) -> Any:
        topic, name = self._durable(request)
        if not request.HasField("failure_policy"):
            raise BadRequestError("failure_policy is missing")
        policy = _policy_from(request.failure_policy)
        if policy.dead_letter_topic == topic:
            raise BadRequestError(f"{topic!r} cannot be the topic of its own dead letters")
        caller = caller_of(call)
        planned = await self._plan(topic, name, partial(apply_policy, policy), caller)
        await self._settings.keep_policy(topic, name, policy)
        await self._set(name, planned, caller)
        return message("danube_admin.SubscriptionResponse")(success=True)

    async def _get_policy(self, request: Any, call: Any) -> Any:
        topic, name = request.topic, request.subscription
        self._broker.catalog.get(topic)
        policy = self._settings.policy(topic, name, await self._acks(topic, name, call))
        response = message("danube_admin.GetSubscriptionFailurePolicyResponse")()
        if policy is not None:
            response.failure_policy.CopyFrom(_policy_message(policy))
        for each in self._all_topics_with(topic, name)[:1]:
            asked = DescribeSubscription(each, name)
            found = await self._dispatcher.run(asked, caller_of(call))
            response.subscription_type = SUBSCRIPTION_TYPES.index(found.type)
        return response

    async def _set_dispatch(self, request: Any, call: Any) -> Any:
        count: int = request.dispatch_config.max_unacked_messages
        check_unacked(count)
        topic, name = self._durable(request)
        caller = caller_of(call)
        planned = await self._plan(topic, name, partial(replace, in_flight_max=count), caller)
        await self._settings.keep_unacked_max(topic, name, count)
        await self._set(name, planned, caller)
        return message("danube_admin.SubscriptionResponse")(success=True)

    async def _get_dispatch(self, request: Any, call: Any) -> Any:
        topic, name = request.topic, request.subscription
        self._broker.catalog.get(topic)
        count = self._settings.unacked_max(topic, name, await self._acks(topic, name, call))
        response = message("danube_admin.GetSubscriptionDispatchConfigResponse")()
        if count is not None:
            response.dispatch_config.max_unacked_messages = count
        return response

    async def _plan(
        self,
        topic: str,
        name: str,
        change: Callable[[AckSettings], AckSettings],
        caller: Caller,
    ) -> dict[str, AckSettings]:
        """Return the new settings of each subscription of that name, by topic.

        Raises if one of them cannot have its settings. Call this before a setting is kept, because
        a refused call must change nothing.
        """
        planned = {}
        for each in self._topics_with(topic, name):
            former = await self._dispatcher.run(DescribeSettings(each, name), caller)
            planned[each] = change(former)
            self._broker.durables.check_acks(each, name, planned[each])
        return planned

    async def _set(self, name: str, planned: Mapping[str, AckSettings], caller: Caller) -> None:
        for topic, acks in planned.items():
            await self._dispatcher.run(ChangeSettings(topic, name, asdict(acks)), caller)

    # Finding

    def _durable(self, request: Any) -> tuple[str, str]:
        """Return topic and subscription of a request; raise unless the topic is a stream."""
        self._broker.streams_of(request.topic)
        return request.topic, parse_plain(request.subscription, "a subscription name")

    def _all_topics_with(self, topic: str, name: str) -> list[str]:
        """Return the topic, and those of its partitions, that have a subscription of that name."""
        count = self._broker.partition_count(topic)
        names = [topic, *(partition_name(topic, n) for n in range(count))]
        return [each for each in names if self._find(each, name) is not None]

    def _topics_with(self, topic: str, name: str) -> list[str]:
        """As `_all_topics_with`, of durable subscriptions only."""
        return [
            each
            for each in self._all_topics_with(topic, name)
            if (found := self._find(each, name)) is not None and found.cursor is not None
        ]

    def _find(self, topic: str, name: str) -> SubscriptionReport | None:
        return find_subscription(self._dispatcher.node, topic, name)

    async def _acks(self, topic: str, name: str, call: Any) -> AckSettings | None:
        topics = self._topics_with(topic, name)
        if not topics:
            return None
        return await self._dispatcher.run(DescribeSettings(topics[0], name), caller_of(call))


def _policy_from(sent: Any) -> FailurePolicy:
    return FailurePolicy(
        max_redelivery_count=sent.max_redelivery_count,
        ack_timeout_ms=sent.ack_timeout_ms,
        base_redelivery_delay_ms=sent.base_redelivery_delay_ms,
        max_redelivery_delay_ms=sent.max_redelivery_delay_ms,
        backoff_strategy=sent.backoff_strategy,
        dead_letter_topic=sent.dead_letter_topic if sent.HasField("dead_letter_topic") else None,
        poison_policy=sent.poison_policy,
    )


def _policy_message(policy: FailurePolicy) -> Any:
    made = message("danube_admin.SubscriptionFailurePolicy")(
        max_redelivery_count=policy.max_redelivery_count,
        ack_timeout_ms=policy.ack_timeout_ms,
        base_redelivery_delay_ms=policy.base_redelivery_delay_ms,
        max_redelivery_delay_ms=policy.max_redelivery_delay_ms,
        backoff_strategy=policy.backoff_strategy,
        poison_policy=policy.poison_policy,
    )
    if policy.dead_letter_topic is not None:
        made.dead_letter_topic = policy.dead_letter_topic
    return made
