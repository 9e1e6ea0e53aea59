"""What a Danube producer says of its schema when it is created: checked, and the first one binds.

A topic has at most one subject. The first producer that names one binds it, with a policy that
only warns; those that name another are refused; those that name none are always let in.
"""

from typing import TYPE_CHECKING, Any

from ister.base import find_partition
from ister.base.errors import (
    SchemaBindingNotFoundError,
    SchemaMismatchError,
    SchemaNotFoundError,
)
from ister.server.grpc.calls.status import Refusal, StatusCode

if TYPE_CHECKING:
    from ister.registry import Registry


class SchemaRefs:
    """Checks the schema that a Danube producer names, and binds the first one to its topic."""

    def __init__(self, registry: "Registry") -> None:
        self._registry = registry

    def check(self, topic: str, reference: Any) -> None:
        """Raise unless the schema is there, and is not another than the topic's."""
        version = reference.pinned_version or reference.min_version
        try:
            self._registry.version(reference.subject, version)
        except SchemaNotFoundError as error:
            # Not NOT_FOUND, which would speak of the topic.
            raise Refusal(StatusCode.FAILED_PRECONDITION, str(error)) from error
        self._is_bound(topic, reference.subject)

    async def bind(self, topic: str, reference: Any) -> None:
        """Bind a topic to the subject, unless it is bound to it: by whoever was first."""
        if not self._is_bound(topic, reference.subject):
            await self._registry.bind(
                _base(topic),
                reference.subject,
                policy="warn",
                validate_payload=False,
                # Two first producers at once, or an operator who binds it with another policy.
                replace=False,
            )

    def _is_bound(self, topic: str, subject: str) -> bool:
        """Whether a topic is bound to that subject; raises when it is bound to another."""
        try:
            bound = self._registry.binding(_base(topic)).subject
        except SchemaBindingNotFoundError:
            return False
        if bound != subject:
            raise SchemaMismatchError(topic, bound)
        return True


def _base(topic: str) -> str:
    """Return the topic that a partition belongs to, else the topic itself."""
    partition = find_partition(topic)
    return partition[0] if partition is not None else topic
