"""Subscriptions: list, describe, make, remove, move, pause, set, redrive."""

from dataclasses import replace
from typing import Annotated, Any, Literal

from msgspec import Meta, Struct

from ister.base import AckSettings, SubscriptionReport, is_wildcard
from ister.base.errors import (
    BadNameError,
    BadRequestError,
    LimitReachedError,
    NamespaceNotFoundError,
    OffsetGoneError,
    SnapshotNotFoundError,
    StorageFailedError,
    StorageUncertainError,
    SubscriptionMismatchError,
    SubscriptionNotFoundError,
    TopicNotFoundError,
    WrongKindError,
)
from ister.base.limits import FILTERS_MAX
from ister.server.admin import Admin, SubscriptionPage
from ister.server.http.resources.shapes import (
    AckChanges,
    Latest,
    NamespaceName,
    PageQuery,
    PatternPath,
    PatternTail,
    Place,
    PlainName,
    Start,
    SubscriptionPath,
    position_of,
)
from ister.server.http.routes import Made, Routes

SUBSCRIPTIONS = Routes("subscriptions")

_OF_TOPIC = "/namespaces/{namespace}/topics/{topic}/subscriptions"
_ONE = f"{_OF_TOPIC}/{{subscription}}"

Glob = Annotated[str, Meta(min_length=1, max_length=255)]
Filters = Annotated[
    dict[Annotated[str, Meta(min_length=1, max_length=255)], Glob],
    Meta(max_length=FILTERS_MAX // 2, description="A glob for each attribute to look at."),
]
KeyFilters = Annotated[
    list[Glob],
    Meta(max_length=FILTERS_MAX // 2, description="Globs; a key that one fits is taken."),
]
ExpireAfter = Annotated[
    int,
    Meta(ge=0, lt=2**53, description="It ends after so long without consumers; 0: never."),
]


class NewSubscription(Struct, forbid_unknown_fields=True):
    """A durable subscription that nobody consumes yet."""

    type: Literal["exclusive", "shared", "failover", "key_shared"] = "exclusive"
    policy: Literal["least_loaded", "round_robin", "random"] = "least_loaded"
    filters: Filters = {}
    key_filters: KeyFilters = []
    start: Start = Latest()
    work_queues: Annotated[
        bool, Meta(description="Whether a pattern covers work queues: each has one subscription.")
    ] = False
    expire_after_ms: ExpireAfter = 0
    settings: AckChanges = AckChanges()


class SubscriptionChanges(Struct, forbid_unknown_fields=True):
    """Settings of a durable subscription; what is left out stays as it is."""

    type: (
        Annotated[
            Literal["exclusive", "shared", "failover", "key_shared"],
            Meta(description="Only while the subscription has no consumers."),
        ]
        | None
    ) = None
    policy: Literal["least_loaded", "round_robin", "random"] | None = None
    filters: Filters | None = None
    key_filters: KeyFilters | None = None
    expire_after_ms: ExpireAfter | None = None
    settings: AckChanges = AckChanges()


class SeekTo(Struct, forbid_unknown_fields=True):
    """Where to go on."""

    to: Place


class Redrive(Struct, forbid_unknown_fields=True):
    """How many dead letters to move back; all of them when it is left out."""

    count: Annotated[int, Meta(ge=1, le=2**31)] | None = None


class Redriven(Struct):
    """How many dead letters were moved back."""

    messages: int


class CursorPath(Struct):
    """A saved cursor of a subscription."""

    namespace: NamespaceName
    topic: PatternTail
    subscription: PlainName
    cursor: PlainName

    @property
    def name(self) -> str:
        """The whole name of the topic or pattern."""
        return f"/{self.namespace}/{self.topic}"


@SUBSCRIPTIONS.route("GET", "/subscriptions")
async def list_subscriptions(admin: Admin, query: PageQuery) -> SubscriptionPage:
    """List all subscriptions."""
    return admin.subscriptions.page(after=query.after, limit=query.limit)


@SUBSCRIPTIONS.route("GET", _OF_TOPIC, BadNameError, TopicNotFoundError)
async def list_subscriptions_of_topic(
    admin: Admin, where: PatternPath, query: PageQuery
) -> SubscriptionPage:
    """List the subscriptions on a topic or pattern."""
    if not is_wildcard(where.name) and not admin.topics.exists(where.name):
        raise TopicNotFoundError(where.name)
    return admin.subscriptions.page(where.name, after=query.after, limit=query.limit)


@SUBSCRIPTIONS.route("GET", _ONE, BadNameError, SubscriptionNotFoundError)
async def describe_subscription(admin: Admin, where: SubscriptionPath) -> SubscriptionReport:
    """Describe a subscription with its consumers and how far it is."""
    return admin.subscriptions.get(where.name, where.subscription)


@SUBSCRIPTIONS.route(
    "PUT",
    _ONE,
    BadNameError,
    NamespaceNotFoundError,
    TopicNotFoundError,
    WrongKindError,
    OffsetGoneError,
    SubscriptionMismatchError,
    LimitReachedError,
    StorageFailedError,
    StorageUncertainError,
)
async def create_subscription(
    admin: Admin, where: SubscriptionPath, body: NewSubscription
) -> Made[SubscriptionReport]:
    """Make a durable subscription, or find it there with the same settings."""
    is_new = admin.subscriptions.find(where.name, where.subscription) is None
    await admin.subscriptions.create(
        where.name,
        where.subscription,
        type=body.type,
        policy=body.policy,
        filters=body.filters,
        key_filters=body.key_filters,
        start=position_of(body.start),
        work_queues=body.work_queues,
        expire_after_ms=body.expire_after_ms,
        acks=_changed(AckSettings(), body.settings) if body.settings.changed() else None,
    )
    return Made(admin.subscriptions.get(where.name, where.subscription), is_new)


@SUBSCRIPTIONS.route(
    "PATCH",
    _ONE,
    BadNameError,
    SubscriptionNotFoundError,
    SubscriptionMismatchError,
    StorageFailedError,
    StorageUncertainError,
)
async def update_subscription(
    admin: Admin, where: SubscriptionPath, body: SubscriptionChanges
) -> SubscriptionReport:
    """Change settings of a durable subscription, consumers or not; what is left out stays."""
    names = ("type", "policy", "filters", "key_filters", "expire_after_ms")
    own = {name: getattr(body, name) for name in names}
    own = {name: value for name, value in own.items() if value is not None}
    acks = body.settings.changed()
    await admin.subscriptions.update(
        where.name,
        where.subscription,
        given=[*own, *acks],
        acks=_changed(AckSettings(), body.settings),
        **own,
    )
    return admin.subscriptions.get(where.name, where.subscription)


@SUBSCRIPTIONS.route(
    "DELETE", _ONE, SubscriptionNotFoundError, StorageFailedError, StorageUncertainError
)
async def delete_subscription(admin: Admin, where: SubscriptionPath) -> None:
    """Remove a durable subscription with its position; its consumers are closed."""
    await admin.subscriptions.delete(where.name, where.subscription)


@SUBSCRIPTIONS.route("GET", f"{_ONE}/settings", SubscriptionNotFoundError)
async def describe_settings(admin: Admin, where: SubscriptionPath) -> AckSettings:
    """Tell how a durable subscription treats messages until they are acknowledged."""
    return admin.subscriptions.settings(where.name, where.subscription)


@SUBSCRIPTIONS.route(
    "PATCH",
    f"{_ONE}/settings",
    BadNameError,
    SubscriptionNotFoundError,
    SubscriptionMismatchError,
    StorageFailedError,
    StorageUncertainError,
)
async def change_settings(admin: Admin, where: SubscriptionPath, body: AckChanges) -> AckSettings:
    """Change how a durable subscription treats messages; what is left out stays as it is."""
    former = admin.subscriptions.settings(where.name, where.subscription)
    if not body.changed():
        raise BadRequestError("no setting is given: say what is to change")
    await admin.subscriptions.set_settings(where.name, where.subscription, _changed(former, body))
    return admin.subscriptions.settings(where.name, where.subscription)


@SUBSCRIPTIONS.route(
    "POST",
    f"{_ONE}/seek",
    SubscriptionNotFoundError,
    SnapshotNotFoundError,
    OffsetGoneError,
    StorageFailedError,
    StorageUncertainError,
)
async def seek_subscription(
    admin: Admin, where: SubscriptionPath, body: SeekTo
) -> SubscriptionReport:
    """Move a durable subscription on all of its topics."""
    await admin.subscriptions.seek(where.name, where.subscription, position_of(body.to))
    return admin.subscriptions.get(where.name, where.subscription)


@SUBSCRIPTIONS.route(
    "POST", f"{_ONE}/pause", SubscriptionNotFoundError, StorageFailedError, StorageUncertainError
)
async def pause_subscription(admin: Admin, where: SubscriptionPath) -> None:
    """Let a durable subscription rest."""
    await admin.subscriptions.pause(where.name, where.subscription)


@SUBSCRIPTIONS.route(
    "POST", f"{_ONE}/resume", SubscriptionNotFoundError, StorageFailedError, StorageUncertainError
)
async def resume_subscription(admin: Admin, where: SubscriptionPath) -> None:
    """Let a durable subscription go on."""
    await admin.subscriptions.resume(where.name, where.subscription)


@SUBSCRIPTIONS.route(
    "POST", f"{_ONE}/redrive", BadNameError, StorageFailedError, StorageUncertainError
)
async def redrive_subscription(admin: Admin, where: SubscriptionPath, body: Redrive) -> Redriven:
    """Move dead letters of a subscription back to the topics they came from.

    Each is in one place or the other at any time; when it takes too long, ask again.
    """
    moved = await admin.subscriptions.redrive(where.name, where.subscription, count=body.count)
    return Redriven(messages=moved)


@SUBSCRIPTIONS.route(
    "PUT",
    f"{_ONE}/cursors/{{cursor}}",
    SubscriptionNotFoundError,
    LimitReachedError,
    StorageFailedError,
    StorageUncertainError,
)
async def save_cursor(admin: Admin, where: CursorPath) -> None:
    """Keep where a durable subscription stands under a name, to seek to later."""
    await admin.subscriptions.save_cursor(where.name, where.subscription, where.cursor)


@SUBSCRIPTIONS.route(
    "DELETE",
    f"{_ONE}/cursors/{{cursor}}",
    SubscriptionNotFoundError,
    SnapshotNotFoundError,
    StorageFailedError,
    StorageUncertainError,
)
async def drop_cursor(admin: Admin, where: CursorPath) -> None:
    """Forget a saved cursor."""
    await admin.subscriptions.drop_cursor(where.name, where.subscription, where.cursor)


def _changed(former: AckSettings, changes: AckChanges) -> AckSettings:
    # The shape has the names and types of the settings.
    wanted: dict[str, Any] = dict(changes.changed())
    return replace(former, **wanted)
