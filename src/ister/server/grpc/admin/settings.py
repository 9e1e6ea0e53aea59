"""What Danube's admin tool has set for subscriptions, which may be before there is one.

Always true: what is told is what the subscription does. A policy is kept in Danube's numbers and
told in them as long as they are what the subscription is set to; else the nearest is told.
"""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import replace

import msgspec
import structlog

from ister.base import AckSettings, find_partition
from ister.base.errors import IsterError, LimitReachedError
from ister.metadata import Delete, Metadata, Put, facts_below
from ister.server.grpc.admin.policies import (
    DANUBE_ACKS,
    FailurePolicy,
    apply_policy,
    check_unacked,
    policy_of,
)

logger = structlog.get_logger("grpc")

PREFIX = "danube/settings"
# As many as there may be subscriptions, by default; about 300 B each.
RECORDS_MAX = 100_000
# Facts in one write, and in one page when they are loaded.
PAGE = 100


class Kept(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What was set for one subscription."""

    policy: FailurePolicy | None = None
    unacked_max: int | None = None
    # The identity of the topic it was set on: a later one of its name has nothing to do with it.
    identity: str = ""


class SubscriptionSettings:
    """The settings of subscriptions that Danube's admin tool has stored.

    Reads are plain calls; call `load` first.
    """

    def __init__(
        self, metadata: Metadata, *, identity_of: Callable[[str], str] = lambda _: ""
    ) -> None:
        """`identity_of` tells topics apart that had one name after another."""
        self._metadata = metadata
        self._identity_of = identity_of
        self._kept: dict[str, Kept] = {}
        self._turn = asyncio.Lock()

    async def load(self, *, exists: Callable[[str], bool]) -> None:
        """Read what is kept, and forget what is of topics that are gone."""
        gone = []
        async for fact in facts_below(self._metadata, PREFIX + "/", page=PAGE):
            try:
                kept = msgspec.json.decode(fact.value, type=Kept)
                if kept.policy is not None:
                    apply_policy(kept.policy, DANUBE_ACKS)
                topic = _topic_of(fact.key)
                there = exists(topic) and kept.identity in ("", self._identity_of(topic))
            except (msgspec.MsgspecError, IsterError) as error:
                # Perhaps kept by another version, which allowed more. The broker starts without it.
                logger.warning("settings_not_readable", key=fact.key, reason=str(error))
            else:
                if there:
                    self._kept[fact.key] = kept
                else:
                    # Deleted by somebody who does not know of these settings.
                    gone.append(fact.key)
        await self._remove(gone)

    def acks(self, topic: str, subscription: str) -> AckSettings:
        """Return what a new subscription of a Danube client is to be like."""
        kept = self._find(topic, subscription)
        acks = DANUBE_ACKS
        if kept.policy is not None:
            acks = apply_policy(kept.policy, acks)
        if kept.unacked_max is not None:
            acks = replace(acks, in_flight_max=kept.unacked_max)
        return acks

    def policy(
        self, topic: str, subscription: str, acks: AckSettings | None
    ) -> FailurePolicy | None:
        """Return the policy of a subscription that is set to `acks` (none: it is not there)."""
        kept = self._find(topic, subscription).policy
        if acks is None:
            return kept
        if kept is not None and apply_policy(kept, acks) == acks:
            return kept
        return policy_of(acks)

    def unacked_max(self, topic: str, subscription: str, acks: AckSettings | None) -> int | None:
        """Return how many messages of a subscription may be unacknowledged, if that is known."""
        if acks is None:
            return self._find(topic, subscription).unacked_max
        return acks.in_flight_max

    async def keep_policy(self, topic: str, subscription: str, policy: FailurePolicy) -> None:
        """Keep a policy for a subscription, there or not."""
        apply_policy(policy, DANUBE_ACKS)
        await self._keep(topic, subscription, policy=policy)

    async def keep_unacked_max(self, topic: str, subscription: str, count: int) -> None:
        """Keep how many messages may be unacknowledged."""
        check_unacked(count)
        await self._keep(topic, subscription, unacked_max=count)

    async def forget(self, topic: str, subscription: str = "") -> None:
        """Forget what was set for a subscription, or for all of a topic and its partitions."""
        if subscription:
            gone = [_key(topic, subscription)]
        else:
            gone = [key for key in self._kept if _is_of(key, topic)]
        async with self._turn:
            gone = [key for key in gone if key in self._kept]
            await self._remove(gone)
            for key in gone:
                del self._kept[key]

    async def _remove(self, keys: Sequence[str]) -> None:
        for start in range(0, len(keys), PAGE):
            await self._metadata.write(*(Delete(key) for key in keys[start : start + PAGE]))

    def _find(self, topic: str, subscription: str) -> Kept:
        """Return what was set for a subscription on a topic, or on that it is a partition of."""
        own = self._get(topic, subscription)
        partition = find_partition(topic)
        if partition is None:
            return own
        whole = self._get(partition[0], subscription)
        return Kept(
            policy=own.policy or whole.policy, unacked_max=own.unacked_max or whole.unacked_max
        )

    def _get(self, topic: str, subscription: str) -> Kept:
        """Return what was set for a subscription on the topic of that name that is there now."""
        kept = self._kept.get(_key(topic, subscription), Kept())
        return kept if kept.identity in ("", self._identity_of(topic)) else Kept()

    async def _keep(self, topic: str, subscription: str, **change: FailurePolicy | int) -> None:
        key = _key(topic, subscription)
        # One after the other: two that set different things at once must both be kept.
        async with self._turn:
            if key not in self._kept and len(self._kept) >= RECORDS_MAX:
                raise LimitReachedError("subscription_settings_max", RECORDS_MAX)
            former = self._get(topic, subscription)
            kept = msgspec.structs.replace(former, identity=self._identity_of(topic), **change)
            await self._metadata.write(Put(key, msgspec.json.encode(kept)))
            self._kept[key] = kept


def _key(topic: str, subscription: str) -> str:
    return f"{PREFIX}{topic}/{subscription}"


def _topic_of(key: str) -> str:
    return key.removeprefix(PREFIX).rpartition("/")[0]


def _is_of(key: str, topic: str) -> bool:
    owner = _topic_of(key)
    partition = find_partition(owner)
    return topic == owner or (partition is not None and partition[0] == topic)
