"""What carries out each operation: the function of its name, in the module of its group."""

from collections.abc import Callable
from typing import Any

from ister.operations import OPERATIONS, Operation
from ister.server.operations import messages, namespaces, schemas, subscriptions, topics
from ister.server.operations.node import Begun, Node

# Each takes its own type of operation, which the table's key guarantees.
Action = Callable[[Node, Any], Begun[Any]]

_MODULES = {
    "namespaces": namespaces,
    "topics": topics,
    "messages": messages,
    "subscriptions": subscriptions,
    "schemas": schemas,
    "bindings": schemas,
    "brokers": namespaces,
}
ACTIONS: dict[type[Operation[Any]], Action] = {
    one: getattr(_MODULES[one.spec.tag], one.spec.name) for one in OPERATIONS
}
