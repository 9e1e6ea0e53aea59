"""Every operation there is, in the order of the documentation."""

from typing import Any

from ister.operations.base import Operation
from ister.operations.messages import MESSAGES
from ister.operations.namespaces import BROKERS, NAMESPACES
from ister.operations.schemas import BINDINGS, SCHEMAS
from ister.operations.subscriptions import SUBSCRIPTIONS
from ister.operations.topics import TOPICS

OPERATIONS: list[type[Operation[Any]]] = [
    operation
    for group in (NAMESPACES, TOPICS, MESSAGES, SUBSCRIPTIONS, SCHEMAS, BINDINGS, BROKERS)
    for operation in group.table
]
