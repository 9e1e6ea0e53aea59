"""Subscriptions: list, describe, make, remove, move, pause, set, redrive."""

from collections.abc import Collection, Sequence

from ister.base import (
    LATEST,
    AckSettings,
    Position,
    SubscriptionReport,
    is_wildcard,
    parse_pattern,
)
from ister.base.errors import (
    SubscriptionMismatchError,
    SubscriptionNotFoundError,
    SubscriptionTakenError,
)
from ister.broker import Broker, SubscribeOptions
from ister.server.admin import waiting
from ister.server.admin.consuming import Inbox, attach
from ister.server.admin.redrive import redrive
from ister.server.admin.reports import SubscriptionPage


class Subscriptions:
    """See the module. `topic` is what the subscription was made on: a topic or a pattern."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker

    def page(self, topic: str = "", *, after: str = "", limit: int = 100) -> SubscriptionPage:
        """Return some subscriptions, of one topic or of all."""
        if topic:
            parse_pattern(topic)
        rows, more = self._broker.subscriptions(topic, after=after, limit=limit)
        return SubscriptionPage(rows=rows, next=more)

    def find(self, topic: str, name: str) -> SubscriptionReport | None:
        """Return a subscription on a topic or pattern, if there is one."""
        parse_pattern(topic)
        try:
            return self._broker.durables.get(topic, name)[0].report()
        except SubscriptionNotFoundError:
            live = self._broker.subscribers.find_live(topic, name)
        return live.report() if live is not None else None

    def get(self, topic: str, name: str) -> SubscriptionReport:
        """Return a subscription on a topic or pattern, or raise `SubscriptionNotFoundError`."""
        found = self.find(topic, name)
        if found is None:
            raise SubscriptionNotFoundError(topic, name)
        return found

    async def create(
        self,
        topic: str,
        name: str,
        *,
        type: str = "exclusive",
        policy: str = "least_loaded",
        filters: dict[str, str] | None = None,
        key_filters: Sequence[str] = (),
        start: Position = LATEST,
        acks: AckSettings | None = None,
        work_queues: bool = False,
        expire_after_ms: int = 0,
    ) -> None:
        """Make a durable subscription that nobody consumes yet, or find the same one there."""
        if not is_wildcard(parse_pattern(topic)):
            self._broker.streams_of(topic)  # Raises when nothing durable can be had there.
        options = SubscribeOptions(
            topic=topic,
            subscription=name,
            consumer="admin",
            type=type,
            policy=policy,
            filters=filters or {},
            key_filters=key_filters,
            start=start,
            acks=acks,
            work_queues=work_queues,
            expire_after_ms=expire_after_ms,
            given=(),
        )
        found = self.find(topic, name)
        if found is not None:
            _check_same(found, options)
        try:
            membership = await attach(self._broker, options, Inbox())
        except SubscriptionTakenError:
            return  # By a consumer of the same subscription: it is there.
        self._broker.subscribers.unsubscribe(membership)

    async def update(
        self,
        topic: str,
        name: str,
        *,
        given: Collection[str],
        type: str = "exclusive",
        policy: str = "least_loaded",
        filters: dict[str, str] | None = None,
        key_filters: Sequence[str] = (),
        acks: AckSettings | None = None,
        expire_after_ms: int = 0,
    ) -> None:
        """Change the settings of a durable subscription that are `given`, consumers or not."""
        options = SubscribeOptions(
            topic=topic,
            subscription=name,
            consumer="admin",
            type=type,
            policy=policy,
            filters=filters or {},
            key_filters=key_filters,
            acks=acks,
            expire_after_ms=expire_after_ms,
            given=given,
        )
        await waiting.done(lambda done: self._broker.subscribers.update(options, done))

    async def delete(self, topic: str, name: str) -> None:
        """Remove a durable subscription with its position; its consumers are closed."""
        await waiting.done(lambda done: self._broker.durables.delete(topic, name, done))

    async def seek(self, topic: str, name: str, to: Position) -> None:
        """Move a subscription on all of its topics."""
        await waiting.done(lambda done: self._broker.durables.seek(topic, name, to, done))

    async def pause(self, topic: str, name: str) -> None:
        """Let a subscription rest."""
        await self._set_paused(topic, name, paused=True)

    async def resume(self, topic: str, name: str) -> None:
        """Let a subscription go on."""
        await self._set_paused(topic, name, paused=False)

    async def save_cursor(self, topic: str, name: str, saved: str) -> None:
        """Keep where a subscription stands under a name, to seek to later."""
        await waiting.done(lambda done: self._broker.durables.save_cursor(topic, name, saved, done))

    async def drop_cursor(self, topic: str, name: str, saved: str) -> None:
        """Forget a saved cursor."""
        await waiting.done(lambda done: self._broker.durables.drop_cursor(topic, name, saved, done))

    def settings(self, topic: str, name: str) -> AckSettings:
        """Return how a durable subscription treats its messages until they are acknowledged."""
        return self._broker.durables.get(topic, name)[0].acks

    def check_settings(self, topic: str, name: str, acks: AckSettings) -> None:
        """Raise what `set_settings` would raise now, and change nothing."""
        self._broker.durables.check_acks(topic, name, acks)

    async def set_settings(self, topic: str, name: str, acks: AckSettings) -> None:
        """Change how a durable subscription treats its messages, consumers or not."""
        await waiting.done(lambda done: self._broker.durables.set_acks(topic, name, acks, done))

    async def redrive(self, topic: str, name: str, *, count: int | None = None) -> int:
        """Move dead letters of a subscription back to where they came from; return how many."""
        return await redrive(self._broker, topic, name, count)

    async def _set_paused(self, topic: str, name: str, *, paused: bool) -> None:
        await waiting.done(
            lambda done: self._broker.durables.pause(topic, name, done, paused=paused)
        )


def _check_same(found: SubscriptionReport, options: SubscribeOptions) -> None:
    """Raise `SubscriptionMismatchError` when a subscription has other settings than these."""
    by_key = found.type == "key_shared"
    acks = found.cursor.settings if found.cursor is not None else None
    expire_after_ms = found.cursor.expire_after_ms if found.cursor is not None else 0
    others = {
        f"type {found.type!r}": found.type == options.type,
        f"policy {found.policy!r}": found.policy == options.policy,
        "other filters": found.filters == options.filters,
        "other key filters": by_key or found.key_filters == list(options.key_filters),
        "another expire_after_ms": (expire_after_ms or 0) == options.expire_after_ms,
        "other ack settings": options.acks is None or acks is None or acks == options.acks,
    }
    detail = [what for what, is_same in others.items() if not is_same]
    if detail:
        way_out = "ask for the same, or change them"
        raise SubscriptionMismatchError(
            found.topic, found.subscription, f"{', '.join(detail)}: {way_out}"
        )
