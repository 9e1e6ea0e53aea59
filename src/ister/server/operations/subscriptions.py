"""Subscriptions: list, describe, make, remove, move, pause, set, redrive."""

from dataclasses import replace

from msgspec.structs import asdict

from ister.base import AckSettings, SubscriptionReport, full_name, is_wildcard, parse_pattern
from ister.base.errors import (
    BadRequestError,
    SubscriptionMismatchError,
    SubscriptionNotFoundError,
    SubscriptionTakenError,
    TopicNotFoundError,
)
from ister.broker import SubscribeOptions
from ister.operations import (
    ChangeSettings,
    CreateSubscription,
    DeleteSubscription,
    DescribeSettings,
    DescribeSubscription,
    DropCursor,
    ListSubscriptions,
    ListSubscriptionsOfTopic,
    Made,
    PauseSubscription,
    Redriven,
    RedriveSubscription,
    ResumeSubscription,
    SaveCursor,
    SeekSubscription,
    SubscriptionPage,
    UpdateSubscription,
)
from ister.server.operations.consuming import Inbox, attach
from ister.server.operations.node import Node, Pending, Steps, nothing
from ister.server.operations.redrive import redrive
from ister.server.operations.topics import topic_exists

# The name of a consumer of ours.
CONSUMER = "admin"


def list_subscriptions(node: Node, asked: ListSubscriptions) -> Steps[SubscriptionPage]:
    """Return a page of all subscriptions, or of those on a topic or pattern."""
    return _list(node, full_name(asked.topic), asked.after, asked.limit)


def list_subscriptions_of_topic(
    node: Node, asked: ListSubscriptionsOfTopic
) -> Steps[SubscriptionPage]:
    """Return a page of the subscriptions on a topic or pattern."""
    if not is_wildcard(parse_pattern(asked.topic)) and not topic_exists(node, asked.topic):
        raise TopicNotFoundError(asked.topic)
    return _list(node, asked.topic, asked.after, asked.limit)


def _list(node: Node, topic: str, after: str, limit: int) -> Steps[SubscriptionPage]:
    rows, more = yield from node.broker.list_subscriptions(topic, after=after, limit=limit)
    return SubscriptionPage(rows=rows, next=more)


def describe_subscription(node: Node, asked: DescribeSubscription) -> SubscriptionReport:
    """Return a subscription on a topic or pattern, or raise `SubscriptionNotFoundError`."""
    found = find_subscription(node, asked.topic, asked.subscription)
    if found is None:
        raise SubscriptionNotFoundError(asked.topic, asked.subscription)
    return found


def find_subscription(node: Node, topic: str, name: str) -> SubscriptionReport | None:
    """Return a subscription on a topic or pattern, if there is one."""
    parse_pattern(topic)
    try:
        return node.broker.durables.get(topic, name)[0].report()
    except SubscriptionNotFoundError:
        live = node.broker.subscribers.find_live(topic, name)
    return live.report() if live is not None else None


async def create_subscription(node: Node, asked: CreateSubscription) -> Made[SubscriptionReport]:
    """Make a durable subscription that nobody consumes yet, or find the same one there."""
    topic, name = asked.topic, asked.subscription
    if not is_wildcard(parse_pattern(topic)):
        node.broker.streams_of(topic)  # Raises when nothing durable can be had there.
    options = SubscribeOptions(**asdict(asked), consumer=CONSUMER, given=())
    found = find_subscription(node, topic, name)
    if found is not None:
        _check_same(found, options)
    try:
        membership = await attach(node.broker, options, Inbox())
    except SubscriptionTakenError:
        pass  # By a consumer of the same subscription: it is there.
    else:
        node.broker.subscribers.unsubscribe(membership)
    return Made(describe_subscription(node, DescribeSubscription(topic, name)), found is None)


def update_subscription(node: Node, asked: UpdateSubscription) -> Pending[SubscriptionReport]:
    """Change the settings of a durable subscription that are `given`, consumers or not."""
    options = SubscribeOptions(**asdict(asked), consumer=CONSUMER)
    return Pending(
        lambda done: node.broker.subscribers.update(options, done),
        lambda _: describe_subscription(
            node, DescribeSubscription(asked.topic, asked.subscription)
        ),
    )


def delete_subscription(node: Node, asked: DeleteSubscription) -> Pending[None]:
    """Remove a durable subscription with its position; its consumers are closed."""
    durables = node.broker.durables
    return Pending(lambda done: durables.delete(asked.topic, asked.subscription, done), nothing)


def describe_settings(node: Node, asked: DescribeSettings | ChangeSettings) -> AckSettings:
    """Return how a durable subscription treats its messages until they are acknowledged."""
    return node.broker.durables.get(asked.topic, asked.subscription)[0].acks


def change_settings(node: Node, asked: ChangeSettings) -> Pending[AckSettings]:
    """Change how a durable subscription treats its messages, consumers or not."""
    former = describe_settings(node, asked)
    if not asked.changes:
        raise BadRequestError("no setting is given: say what is to change")
    acks, durables = replace(former, **asked.changes), node.broker.durables
    return Pending(
        lambda done: durables.set_acks(asked.topic, asked.subscription, acks, done),
        lambda _: describe_settings(node, asked),
    )


def seek_subscription(node: Node, asked: SeekSubscription) -> Pending[SubscriptionReport]:
    """Move a subscription on all of its topics."""
    topic, name = asked.topic, asked.subscription
    return Pending(
        lambda done: node.broker.durables.seek(topic, name, asked.to, done),
        lambda _: describe_subscription(node, DescribeSubscription(topic, name)),
    )


def pause_subscription(node: Node, asked: PauseSubscription) -> Pending[None]:
    """Let the deliveries of a durable subscription rest."""
    return _set_paused(node, asked, paused=True)


def resume_subscription(node: Node, asked: ResumeSubscription) -> Pending[None]:
    """Let the deliveries of a durable subscription go on."""
    return _set_paused(node, asked, paused=False)


def _set_paused(
    node: Node, asked: PauseSubscription | ResumeSubscription, *, paused: bool
) -> Pending[None]:
    durables = node.broker.durables
    return Pending(
        lambda done: durables.pause(asked.topic, asked.subscription, done, paused=paused), nothing
    )


async def redrive_subscription(node: Node, asked: RedriveSubscription) -> Redriven:
    """Move dead letters of a subscription back to where they came from."""
    moved = await redrive(node.broker, asked.topic, asked.subscription, asked.count)
    return Redriven(messages=moved)


def save_cursor(node: Node, asked: SaveCursor) -> Pending[None]:
    """Keep where a subscription stands under a name, to seek to later."""
    save = node.broker.durables.save_cursor
    return Pending(lambda done: save(asked.topic, asked.subscription, asked.cursor, done), nothing)


def drop_cursor(node: Node, asked: DropCursor) -> Pending[None]:
    """Forget a saved cursor."""
    drop = node.broker.durables.drop_cursor
    return Pending(lambda done: drop(asked.topic, asked.subscription, asked.cursor, done), nothing)


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
