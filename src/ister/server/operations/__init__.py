"""What operations do: the only place where a door's wishes act on the broker.

`Dispatcher` is the one way in, for every door. Each operation of `ister.operations` has a function
of its name here.
"""

from ister.server.operations.dispatcher import Dispatcher
from ister.server.operations.namespaces import BROKER_ID
from ister.server.operations.node import Done, Node
from ister.server.operations.policy import INSIDE, Caller, Policy
from ister.server.operations.subscriptions import find_subscription
from ister.server.operations.topics import subscriptions_on, topic_exists, topic_identity
from ister.server.operations.waiting import whole

__all__ = [
    "BROKER_ID",
    "INSIDE",
    "Caller",
    "Dispatcher",
    "Done",
    "Node",
    "Policy",
    "find_subscription",
    "subscriptions_on",
    "topic_exists",
    "topic_identity",
    "whole",
]
