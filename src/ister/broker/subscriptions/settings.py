"""Changes the settings of durable subscriptions, also while they have consumers.

Always true:
- a change counts at once, and is taken back when the journal does not take it;
- while the journal does not have a subscription yet, or its new type, its consumers wait: neither
  could be taken back under them.
"""

from collections.abc import Callable, Sequence

from ister.base import AckSettings
from ister.base.errors import IsterError
from ister.broker.durable import DurableSubscription
from ister.broker.scheduling import Done, after_all
from ister.broker.state import SubscriptionCreated
from ister.broker.storage import Write

Found = Callable[[DurableSubscription | IsterError], object]


class Settings:
    """The changes of settings that the journal does not have yet."""

    def __init__(self, check: Callable[[DurableSubscription, AckSettings], object]) -> None:
        """`check` raises why a subscription cannot have ack settings."""
        self._check = check
        # Those the journal does not have yet, with everybody who waits for that.
        self._waiting: dict[DurableSubscription, list[Found]] = {}

    def wait(self, durable: DurableSubscription, notify: Found) -> None:
        """Have `notify` called when the journal has a subscription, or has refused it."""
        self._waiting.setdefault(durable, []).append(notify)

    def hold(self, durable: DurableSubscription) -> None:
        """Have consumers of a subscription wait until `on_stored`."""
        self._waiting.setdefault(durable, [])

    def is_waiting(self, durable: DurableSubscription) -> bool:
        """Whether consumers of a subscription have to wait."""
        return durable in self._waiting

    def on_stored(
        self, durable: DurableSubscription, found: DurableSubscription | IsterError
    ) -> None:
        """The journal has a subscription, or has refused it."""
        for notify in self._waiting.pop(durable, ()):
            notify(found)

    def update(
        self, planned: Sequence[tuple[DurableSubscription, SubscriptionCreated]], done: Done
    ) -> None:
        """Change subscriptions, all or none of them. Raises when one of them cannot be changed."""
        for durable, created in planned:
            self.check(durable, created.acks)
        each = after_all(len(planned), done)
        for durable, created in planned:
            self.change(
                durable, created, lambda one: each(one if isinstance(one, IsterError) else None)
            )

    def check(self, durable: DurableSubscription, acks: AckSettings) -> None:
        """Raise when a subscription cannot be set to `acks` now."""
        self._check(durable, acks)
        durable.storage.committer.check()

    def change(
        self, durable: DurableSubscription, created: SubscriptionCreated, done: Found
    ) -> None:
        """Change a subscription; `done` is called when the journal has the change."""
        if created.type != durable.record.created.type:
            self.wait(durable, done)
            done = lambda found: self.on_stored(durable, found)  # noqa: E731

        def on_done(error: IsterError | None) -> None:
            if error is None:
                durable.journaled = created
            elif durable.record.created is created and not durable.closed:
                durable.change(durable.journaled)
            done(error or durable)

        durable.storage.commit(Write(journal_only=[created]), on_done)
        durable.change(created)
