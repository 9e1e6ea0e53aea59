"""Namespaces, and the broker itself."""

from msgspec import Struct

from ister.base import BrokerReport
from ister.base.errors import (
    BadNameError,
    LimitReachedError,
    NamespaceExistsError,
    NamespaceNotEmptyError,
    NamespaceNotFoundError,
    StorageFailedError,
    StorageUncertainError,
)
from ister.operations.base import Group, Made, Operation, Right
from ister.operations.reports import BalanceReport, BrokerRow, NamespaceReport
from ister.operations.shapes import After, ExistOk, NamespaceName, PageSize

NAMESPACES = Group("namespaces")
BROKERS = Group("brokers")


class NamespacePage(Struct):
    """Some namespaces by name."""

    rows: list[str]
    next: str = ""


class BrokerPage(Struct):
    """The brokers."""

    rows: list[BrokerRow]
    next: str = ""


@NAMESPACES(Right.LOOKUP, "GET /namespaces")
class ListNamespaces(Operation[NamespacePage], frozen=True):
    """List namespaces."""

    limit: PageSize = 100
    after: After = ""


@NAMESPACES(Right.LOOKUP, "GET /namespaces/{namespace}", NamespaceNotFoundError)
class DescribeNamespace(Operation[NamespaceReport], frozen=True):
    """Describe a namespace."""

    namespace: NamespaceName


@NAMESPACES(
    Right.MANAGE,
    "PUT /namespaces/{namespace}",
    BadNameError,
    NamespaceExistsError,
    LimitReachedError,
    StorageFailedError,
    StorageUncertainError,
)
class CreateNamespace(Operation[Made[NamespaceReport]], frozen=True):
    """Create a namespace, or confirm that it exists."""

    namespace: NamespaceName
    exist_ok: ExistOk = True


@NAMESPACES(
    Right.MANAGE, "DELETE /namespaces/{namespace}", NamespaceNotFoundError, NamespaceNotEmptyError
)
class DeleteNamespace(Operation[None], frozen=True):
    """Delete a namespace that has no topics."""

    namespace: NamespaceName


@BROKERS(Right.LOOKUP, "GET /brokers")
class ListBrokers(Operation[BrokerPage], frozen=True):
    """List the brokers with their addresses."""


@BROKERS(Right.LOOKUP, "GET /broker")
class DescribeBroker(Operation[BrokerReport], frozen=True):
    """Return the figures of this broker."""


@BROKERS(Right.LOOKUP, "GET /brokers/balance")
class DescribeBalance(Operation[BalanceReport], frozen=True):
    """Return how evenly topics are spread over the brokers."""
