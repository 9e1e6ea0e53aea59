"""Namespaces: list, describe, make, remove."""

from ister.base.errors import NamespaceNotFoundError
from ister.broker import Broker
from ister.server.admin import waiting
from ister.server.admin.reports import NamespacePolicies, NamespaceReport


class Namespaces:
    """See the module."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker

    def names(self) -> list[str]:
        """Return all namespaces by name."""
        return self._broker.namespaces()

    def describe(self, namespace: str) -> NamespaceReport:
        """Return one namespace, or raise `NamespaceNotFoundError`."""
        self.check(namespace)
        start = f"/{namespace}/"
        return NamespaceReport(
            namespace=namespace,
            topics=sum(
                name.startswith(start)
                for names in (self._broker.catalog.topics, self._broker.catalog.timeline_names())
                for name in names
            ),
            policies=self.policies(namespace),
        )

    def policies(self, namespace: str) -> NamespacePolicies:
        """Return what is allowed in a namespace: as yet, what the broker as a whole allows."""
        self.check(namespace)
        limits = self._broker.limits
        return NamespacePolicies(
            max_consumers_per_subscription=limits.consumers_per_subscription_max,
            max_message_size=limits.message_bytes_max,
        )

    def check(self, namespace: str) -> None:
        """Raise `NamespaceNotFoundError` unless there is such a namespace."""
        if namespace not in self._broker.catalog.namespaces:
            raise NamespaceNotFoundError(namespace)

    async def create(self, namespace: str) -> None:
        """Make a namespace, or raise `NamespaceExistsError`."""
        await waiting.done(lambda done: self._broker.create_namespace(namespace, done))

    async def delete(self, namespace: str) -> None:
        """Remove a namespace, or raise `NamespaceNotEmptyError` while it has topics."""
        await waiting.done(lambda done: self._broker.delete_namespace(namespace, done))
