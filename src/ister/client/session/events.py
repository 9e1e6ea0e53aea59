"""What an application may be told about a subscription beside its messages."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class SlowConsumer:
    """The broker dropped messages because this consumer was too slow: so many in all so far."""

    subscription: str
    dropped: int


@dataclass(frozen=True, slots=True)
class Promoted:
    """This consumer of a failover subscription is the active one from now on."""

    subscription: str


@dataclass(frozen=True, slots=True)
class Resumed:
    """The connection was lost and is back; live messages of the time between are lost."""

    subscription: str


Event = SlowConsumer | Promoted | Resumed
