"""What a consumer asks of a durable subscription, and what that changes of one that exists."""

import dataclasses
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

import msgspec

from ister.base import AckSettings, Poison, Position
from ister.base.errors import BadRequestError, SubscriptionMismatchError
from ister.broker.state import SubscriptionCreated
from ister.subscriptions import Policy, SubscriptionType

ACK_SETTINGS = frozenset(field.name for field in dataclasses.fields(AckSettings))


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """What a consumer asks of a durable subscription; checked."""

    pattern: str
    name: str
    type: SubscriptionType
    policy: Policy
    filters: dict[str, str]
    key_filters: list[str]
    start: Position
    acks: AckSettings | None
    # Whether a pattern covers work queues, too.
    work_queues: bool = False
    # One that is not ends with its last consumer, one that is after so long without; 0: never.
    durable: bool = True
    expire_after_ms: int = 0
    # The settings that an existing subscription gets; the others stay as they are. `None`: the
    # peer does not say. Then it gets those that are not the defaults, and has to be of this type.
    given: Collection[str] | None = None

    def acks_to_make(self) -> AckSettings:
        """Return the settings of a new subscription.

        One that is not durable has no dead letters unless they were asked for: streams named after
        it would stay when it is gone, and those of a wildcard would be covered by others like it.
        """
        acks = self.acks or AckSettings()
        asked = acks.dead_letter_topic or "poison" in (self.given or ())
        if self.durable or asked or acks.poison != Poison.DEAD_LETTER:
            return acks
        return dataclasses.replace(acks, poison=Poison.DROP)

    def created(self, number: int) -> SubscriptionCreated:
        """Return the subscription to make."""
        return SubscriptionCreated(
            number,
            self.pattern,
            self.name,
            self.type.value,
            self.policy.value,
            self.filters,
            self.key_filters,
            self.acks_to_make(),
            self.work_queues,
            self.durable,
            self.expire_after_ms,
        )

    def applied_to(self, created: SubscriptionCreated, *, consumers: int) -> SubscriptionCreated:
        """Return an existing subscription as it is with what was given.

        Raises `SubscriptionMismatchError` when it cannot be of the type that was given, and when
        it is durable and was not to be.
        """
        if self.given is None or "type" in self.given:
            check_type(created, self.type, consumers=consumers, may_change=self.given is not None)
        names, asked = self._names(), self.acks or AckSettings()
        if "durable" in names and created.durable and not self.durable:
            # It would end, with its place, when a passing consumer leaves.
            way_out = "leave out durable=False, take another name, or delete the subscription first"
            raise SubscriptionMismatchError(
                created.pattern, created.name, f"a place to keep: {way_out}"
            )
        acks = {name: getattr(asked, name) for name in ACK_SETTINGS.intersection(names)}
        own: dict[str, Any] = {
            "type": self.type.value,
            "policy": self.policy.value,
            "filters": self.filters,
            "key_filters": self.key_filters,
            "durable": self.durable,
            "expire_after_ms": self.expire_after_ms,
        }
        changes = {name: value for name, value in own.items() if name in names}
        if self.type is SubscriptionType.KEY_SHARED:
            # They are the consumer's own.
            changes.pop("key_filters", None)
        return msgspec.structs.replace(
            created,
            acks=dataclasses.replace(created.acks, **acks),
            work_queues=created.work_queues or self.work_queues,
            **changes,
        )

    def _names(self) -> Collection[str]:
        if self.given is not None:
            return self.given
        default, asked = AckSettings(), self.acks or AckSettings()
        names = {name for name in ACK_SETTINGS if getattr(asked, name) != getattr(default, name)}
        if self.policy is not Policy.LEAST_LOADED:
            names.add("policy")
        own = ("filters", "key_filters", "expire_after_ms")
        return names | {name for name in own if getattr(self, name)}


def check_expire_after(expire_after_ms: int) -> int:
    """Return a time without consumers, or raise `BadRequestError`."""
    if not 0 <= expire_after_ms < 2**53:
        raise BadRequestError(f"expire_after_ms is 0 (never) or more, not {expire_after_ms}")
    return expire_after_ms


def check_type(
    created: SubscriptionCreated, type_: SubscriptionType, *, consumers: int, may_change: bool
) -> None:
    """Raise `SubscriptionMismatchError` unless a subscription is of a type, or can be."""
    if type_.value == created.type or (may_change and not consumers):
        return
    way_out = "subscribe with that type, or change it while the subscription has no consumers"
    count = f" and {consumers} consumer{'s' * (consumers != 1)}" if consumers else ""
    raise SubscriptionMismatchError(
        created.pattern, created.name, f"type {created.type!r}{count}: {way_out}"
    )
