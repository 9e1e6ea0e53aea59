"""Changes the settings of a durable subscription, also while it has consumers.

Always true: a change counts at once, and is taken back when the journal does not take it.
"""

from collections.abc import Callable

from ister.base.errors import IsterError
from ister.broker.changes import SubscriptionCreated
from ister.broker.durable import DurableSubscription

Changed = Callable[[DurableSubscription | IsterError], object]


def change(durable: DurableSubscription, created: SubscriptionCreated, done: Changed) -> None:
    """Change a subscription; `done` is called when the journal has the change."""

    def on_done(error: IsterError | None) -> None:
        if error is None:
            durable.journaled = created
        elif durable.record.created is created and not durable.closed:
            durable.change(durable.journaled)
        done(error or durable)

    durable.vault.record([created], on_done, apply=False)
    durable.change(created)
