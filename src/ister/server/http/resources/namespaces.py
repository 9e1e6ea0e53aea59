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
from ister.server.admin import Admin, BalanceReport, BrokerRow, NamespaceReport
from ister.server.http.resources.shapes import NamespacePath, PageQuery
from ister.server.http.routes import Made, Routes

NAMESPACES = Routes("namespaces")
BROKERS = Routes("brokers")


class NamespacePage(Struct):
    """Some namespaces by name."""

    rows: list[str]
    next: str = ""


class BrokerPage(Struct):
    """The brokers."""

    rows: list[BrokerRow]
    next: str = ""


@NAMESPACES.route("GET", "/namespaces")
async def list_namespaces(admin: Admin, query: PageQuery) -> NamespacePage:
    """List namespaces."""
    names = [name for name in admin.namespaces.names() if name > query.after]
    page = names[: query.limit]
    return NamespacePage(rows=page, next=page[-1] if len(names) > len(page) else "")


@NAMESPACES.route("GET", "/namespaces/{namespace}", NamespaceNotFoundError)
async def describe_namespace(admin: Admin, where: NamespacePath) -> NamespaceReport:
    """Describe a namespace."""
    return admin.namespaces.describe(where.namespace)


@NAMESPACES.route(
    "PUT",
    "/namespaces/{namespace}",
    BadNameError,
    LimitReachedError,
    StorageFailedError,
    StorageUncertainError,
)
async def create_namespace(admin: Admin, where: NamespacePath) -> Made[NamespaceReport]:
    """Make a namespace, or find it there."""
    try:
        await admin.namespaces.create(where.namespace)
        is_new = True
    except NamespaceExistsError:
        is_new = False
    return Made(admin.namespaces.describe(where.namespace), is_new)


@NAMESPACES.route(
    "DELETE", "/namespaces/{namespace}", NamespaceNotFoundError, NamespaceNotEmptyError
)
async def delete_namespace(admin: Admin, where: NamespacePath) -> None:
    """Remove a namespace that has no topics."""
    await admin.namespaces.delete(where.namespace)


@BROKERS.route("GET", "/brokers")
async def list_brokers(admin: Admin) -> BrokerPage:
    """List the brokers with the addresses of their doors."""
    return BrokerPage(rows=admin.brokers())


@BROKERS.route("GET", "/broker")
async def describe_broker(admin: Admin) -> BrokerReport:
    """Tell the figures of this broker."""
    return admin.report()


@BROKERS.route("GET", "/brokers/balance")
async def describe_balance(admin: Admin) -> BalanceReport:
    """Tell how evenly topics are spread over the brokers."""
    return admin.balance()
