"""Namespaces, and the broker itself."""

from importlib.metadata import version

from ister.base import BrokerReport
from ister.base.errors import NamespaceNotFoundError
from ister.operations import (
    BalanceReport,
    BrokerPage,
    BrokerRow,
    CreateNamespace,
    DeleteNamespace,
    DescribeBalance,
    DescribeBroker,
    DescribeNamespace,
    ListBrokers,
    ListNamespaces,
    Made,
    NamespacePage,
    NamespacePolicies,
    NamespaceReport,
)
from ister.server.operations.node import Node, Pending, nothing

# The number of a broker that stands alone.
BROKER_ID = 1


def list_namespaces(node: Node, asked: ListNamespaces) -> NamespacePage:
    """Return a page of names."""
    names = [name for name in node.broker.namespaces() if name > asked.after]
    page = names[: asked.limit]
    return NamespacePage(rows=page, next=page[-1] if len(names) > len(page) else "")


def describe_namespace(node: Node, asked: DescribeNamespace) -> NamespaceReport:
    """Return one namespace with what is allowed there: as yet, what the whole broker allows."""
    check_namespace(node, asked.namespace)
    broker, start = node.broker, f"/{asked.namespace}/"
    every = (broker.catalog.topics, broker.catalog.timeline_names())
    return NamespaceReport(
        namespace=asked.namespace,
        topics=sum(name.startswith(start) for names in every for name in names),
        policies=NamespacePolicies(
            max_consumers_per_subscription=broker.limits.consumers_per_subscription_max,
            max_message_size=broker.limits.message_bytes_max,
        ),
    )


def create_namespace(
    node: Node, asked: CreateNamespace
) -> Made[NamespaceReport] | Pending[Made[NamespaceReport]]:
    """Make a namespace."""
    described = DescribeNamespace(asked.namespace)
    if asked.exist_ok and asked.namespace in node.broker.catalog.namespaces:
        return Made(describe_namespace(node, described), is_new=False)
    return Pending(
        lambda done: node.broker.create_namespace(asked.namespace, done),
        lambda _: Made(describe_namespace(node, described), is_new=True),
    )


def delete_namespace(node: Node, asked: DeleteNamespace) -> Pending[None]:
    """Remove a namespace."""
    return Pending(lambda done: node.broker.delete_namespace(asked.namespace, done), nothing)


def list_brokers(node: Node, _: ListBrokers) -> BrokerPage:
    """Return the brokers of the cluster: this one."""
    doors = {name: node.doors.get(name, "") for name in ("native", "http", "grpc", "admin")}
    row = BrokerRow(id=BROKER_ID, name=node.broker.name, version=version("ister"), **doors)
    return BrokerPage(rows=[row])


def describe_broker(node: Node, _: DescribeBroker) -> BrokerReport:
    """Return the figures of this broker."""
    return node.broker.report()


def describe_balance(node: Node, _: DescribeBalance) -> BalanceReport:
    """Return how evenly the topics are spread: one broker has them all."""
    topics = node.broker.report().topics
    return BalanceReport(topics={BROKER_ID: topics}, mean=float(topics), deviation=0.0)


def check_namespace(node: Node, namespace: str) -> None:
    """Raise `NamespaceNotFoundError` unless there is such a namespace."""
    if namespace not in node.broker.catalog.namespaces:
        raise NamespaceNotFoundError(namespace)
