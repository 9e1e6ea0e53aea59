"""Subscriptions: list, describe, make, remove, move, pause, set, redrive."""

from collections.abc import Collection, Sequence
from typing import Annotated, Any, Literal

from msgspec import Meta, Struct, field

from ister.base import LATEST, AckSettings, Position, SubscriptionReport
from ister.base.errors import (
    BadNameError,
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
from ister.operations.base import Group, Made, Operation, Right
from ister.operations.reports import SubscriptionPage
from ister.operations.shapes import (
    AckChanges,
    After,
    Latest,
    PageSize,
    PatternName,
    Place,
    PlainName,
    Start,
    position_of,
)

SUBSCRIPTIONS = Group("subscriptions")

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


@SUBSCRIPTIONS(Right.LOOKUP, "GET /subscriptions")
class ListSubscriptions(Operation[SubscriptionPage], frozen=True):
    """List all subscriptions, or those on a topic or pattern."""

    topic: Annotated[
        str,
        Meta(
            pattern=r"^((/[\w-]+/)?(>|(\*|[\w-]+)(\.(\*|[\w-]+))*(\.>)?))?$",
            description="Only those made on this topic or pattern, there or not.",
        ),
    ] = ""
    limit: PageSize = 100
    after: After = ""


@SUBSCRIPTIONS(Right.LOOKUP, f"GET {_OF_TOPIC}", BadNameError, TopicNotFoundError)
class ListSubscriptionsOfTopic(Operation[SubscriptionPage], frozen=True):
    """List the subscriptions on a topic or pattern."""

    topic: PatternName
    limit: PageSize = 100
    after: After = ""


@SUBSCRIPTIONS(Right.LOOKUP, f"GET {_ONE}", BadNameError, SubscriptionNotFoundError)
class DescribeSubscription(Operation[SubscriptionReport], frozen=True):
    """Describe a subscription with its consumers and its position."""

    topic: PatternName
    subscription: PlainName


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

    def fields(self) -> dict[str, Any]:
        """Return the fields of `CreateSubscription`."""
        fields = {name: getattr(self, name) for name in self.__struct_fields__}
        changed = fields.pop("settings").changed()
        acks = AckSettings(**changed) if changed else None
        return {**fields, "start": position_of(self.start), "acks": acks}


@SUBSCRIPTIONS(
    Right.CONSUME,
    f"PUT {_ONE}",
    BadNameError,
    NamespaceNotFoundError,
    TopicNotFoundError,
    WrongKindError,
    OffsetGoneError,
    SubscriptionMismatchError,
    LimitReachedError,
    StorageFailedError,
    StorageUncertainError,
    body=NewSubscription,
)
class CreateSubscription(Operation[Made[SubscriptionReport]], frozen=True):
    """Create a durable subscription, or confirm that it exists with the same settings."""

    topic: PatternName
    subscription: PlainName
    type: str = "exclusive"
    policy: str = "least_loaded"
    filters: dict[str, str] = field(default_factory=dict)
    key_filters: Sequence[str] = ()
    start: Position = LATEST
    # Without them, the defaults; of a subscription that exists, what it has.
    acks: AckSettings | None = None
    work_queues: bool = False
    expire_after_ms: int = 0


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

    def fields(self) -> dict[str, Any]:
        """Return the fields of `UpdateSubscription`."""
        own = {name: getattr(self, name) for name in self.__struct_fields__ if name != "settings"}
        own = {name: value for name, value in own.items() if value is not None}
        acks = self.settings.changed()
        return {**own, "given": [*own, *acks], "acks": AckSettings(**acks)}


@SUBSCRIPTIONS(
    Right.CONSUME,
    f"PATCH {_ONE}",
    BadNameError,
    SubscriptionNotFoundError,
    SubscriptionMismatchError,
    StorageFailedError,
    StorageUncertainError,
    body=SubscriptionChanges,
)
class UpdateSubscription(Operation[SubscriptionReport], frozen=True):
    """Change settings of a durable subscription; settings not given stay as they are."""

    topic: PatternName
    subscription: PlainName
    # The names of the settings that are to change, of `acks` too.
    given: Collection[str]
    type: str = "exclusive"
    policy: str = "least_loaded"
    filters: dict[str, str] = field(default_factory=dict)
    key_filters: Sequence[str] = ()
    acks: AckSettings | None = None
    expire_after_ms: int = 0


@SUBSCRIPTIONS(
    Right.CONSUME,
    f"DELETE {_ONE}",
    SubscriptionNotFoundError,
    StorageFailedError,
    StorageUncertainError,
)
class DeleteSubscription(Operation[None], frozen=True):
    """Delete a durable subscription with its position; its consumers are closed."""

    topic: PatternName
    subscription: PlainName


@SUBSCRIPTIONS(Right.LOOKUP, f"GET {_ONE}/settings", SubscriptionNotFoundError)
class DescribeSettings(Operation[AckSettings], frozen=True):
    """Return the acknowledgement settings of a durable subscription."""

    topic: PatternName
    subscription: PlainName


@SUBSCRIPTIONS(
    Right.CONSUME,
    f"PATCH {_ONE}/settings",
    BadNameError,
    SubscriptionNotFoundError,
    SubscriptionMismatchError,
    StorageFailedError,
    StorageUncertainError,
    body=AckChanges,
)
class ChangeSettings(Operation[AckSettings], frozen=True):
    """Change acknowledgement settings of a durable subscription; others stay as they are."""

    topic: PatternName
    subscription: PlainName
    # Some of the fields of `AckSettings`.
    changes: dict[str, Any]


class SeekTo(Struct, forbid_unknown_fields=True):
    """Where to go on."""

    to: Place

    def fields(self) -> dict[str, Any]:
        """Return the fields of `SeekSubscription`."""
        return {"to": position_of(self.to)}


@SUBSCRIPTIONS(
    Right.CONSUME,
    f"POST {_ONE}/seek",
    SubscriptionNotFoundError,
    SnapshotNotFoundError,
    OffsetGoneError,
    StorageFailedError,
    StorageUncertainError,
    body=SeekTo,
)
class SeekSubscription(Operation[SubscriptionReport], frozen=True):
    """Move a durable subscription on all of its topics."""

    topic: PatternName
    subscription: PlainName
    to: Position


@SUBSCRIPTIONS(
    Right.CONSUME,
    f"POST {_ONE}/pause",
    SubscriptionNotFoundError,
    StorageFailedError,
    StorageUncertainError,
)
class PauseSubscription(Operation[None], frozen=True):
    """Pause the deliveries of a durable subscription."""

    topic: PatternName
    subscription: PlainName


@SUBSCRIPTIONS(
    Right.CONSUME,
    f"POST {_ONE}/resume",
    SubscriptionNotFoundError,
    StorageFailedError,
    StorageUncertainError,
)
class ResumeSubscription(Operation[None], frozen=True):
    """Resume the deliveries of a durable subscription."""

    topic: PatternName
    subscription: PlainName


class Redriven(Struct):
    """How many dead letters were moved back."""

    messages: int


@SUBSCRIPTIONS(
    Right.CONSUME,
    f"POST {_ONE}/redrive",
    BadNameError,
    SubscriptionNotFoundError,
    StorageFailedError,
    StorageUncertainError,
)
class RedriveSubscription(Operation[Redriven], frozen=True):
    """Move dead letters of a subscription back to the topics they came from.

    Each is in one place or the other at any time; when it takes too long, ask again.
    """

    topic: PatternName
    subscription: PlainName
    count: (
        Annotated[
            int, Meta(ge=1, le=2**31, description="How many at most; all when it is left out.")
        ]
        | None
    ) = None


@SUBSCRIPTIONS(
    Right.CONSUME,
    f"PUT {_ONE}/cursors/{{cursor}}",
    SubscriptionNotFoundError,
    LimitReachedError,
    StorageFailedError,
    StorageUncertainError,
)
class SaveCursor(Operation[None], frozen=True):
    """Save the position of a durable subscription under a name, to seek to later."""

    topic: PatternName
    subscription: PlainName
    cursor: PlainName


@SUBSCRIPTIONS(
    Right.CONSUME,
    f"DELETE {_ONE}/cursors/{{cursor}}",
    SubscriptionNotFoundError,
    SnapshotNotFoundError,
    StorageFailedError,
    StorageUncertainError,
)
class DropCursor(Operation[None], frozen=True):
    """Delete a saved cursor."""

    topic: PatternName
    subscription: PlainName
    cursor: PlainName
