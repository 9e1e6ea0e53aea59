"""The services of Danube's admin port: brokers, the cluster, namespaces, topics, security.

A broker that stands alone answers as Danube's does: what needs a second broker is UNIMPLEMENTED
or FAILED_PRECONDITION.
"""

import sys
from collections.abc import Mapping
from typing import Any

from ister.operations import ListBrokers, ListNamespaces
from ister.server.grpc.admin.codes import caller_of, refusing
from ister.server.grpc.admin.settings import SubscriptionSettings
from ister.server.grpc.admin.subscriptions import SubscriptionAdmin
from ister.server.grpc.admin.topics import NamespaceAdmin, TopicAdmin
from ister.server.grpc.calls.calls import Method
from ister.server.grpc.calls.status import Refusal, StatusCode
from ister.server.grpc.messages import Handler, message, service
from ister.server.operations import BROKER_ID, Dispatcher

_ALONE = "this broker stands alone: there is no cluster to ask about or to change"
_NO_ROLES = "this version knows no roles and bindings: everybody may do everything"


def admin_services(dispatcher: Dispatcher, settings: SubscriptionSettings) -> dict[str, Method]:
    """Return all services of the admin port, the schema registry apart."""
    topics = {
        **TopicAdmin(dispatcher, settings).handlers(),
        **SubscriptionAdmin(dispatcher, settings).handlers(),
    }
    return {
        **service("danube_admin.BrokerAdmin", BrokerAdmin(dispatcher).handlers()),
        **service("danube_admin.ClusterAdmin", _all_refused(_ALONE, *_CLUSTER)),
        **service("danube_admin.NamespaceAdmin", NamespaceAdmin(dispatcher).handlers()),
        **service("danube_admin.TopicAdmin", topics),
        **service("danube_admin.SecurityAdmin", _all_refused(_NO_ROLES, *_SECURITY)),
    }


class BrokerAdmin:
    """`danube_admin.BrokerAdmin`."""

    def __init__(self, dispatcher: Dispatcher) -> None:
        self._dispatcher = dispatcher

    def handlers(self) -> Mapping[str, Handler]:
        """Return what answers each method."""
        return {
            "ListBrokers": self._list,
            "GetLeaderBroker": self._leader,
            "ListNamespaces": self._namespaces,
            "UnloadBroker": self._unload,
            "ActivateBroker": self._activate,
            **_all_refused(_ALONE, "GetClusterBalance", "TriggerRebalance"),
        }

    async def _list(self, _request: Any, call: Any) -> Any:
        page = await self._dispatcher.run(ListBrokers(), caller_of(call))
        info = message("danube_admin.BrokerInfo")
        return message("danube_admin.BrokerListResponse")(
            brokers=[
                info(
                    broker_id=str(row.id),
                    broker_addr=self._dispatcher.node.advertised or _url(row.grpc),
                    broker_role="Cluster_Leader",
                    admin_addr=_url(row.admin),
                    metrics_addr=row.http,
                    broker_status=row.status,
                )
                for row in page.rows
            ]
        )

    async def _leader(self, _request: Any, _: object) -> Any:
        return message("danube_admin.BrokerResponse")(leader=str(BROKER_ID))

    async def _namespaces(self, _request: Any, call: Any) -> Any:
        every = ListNamespaces(limit=sys.maxsize)
        page = await self._dispatcher.run(every, caller_of(call))
        return message("danube_admin.NamespaceListResponse")(namespaces=page.rows)

    async def _unload(self, request: Any, _: object) -> None:
        if not request.broker_id:
            raise Refusal(StatusCode.INVALID_ARGUMENT, "broker_id is missing")
        text = "there is no other active broker that could take the topics"
        raise Refusal(StatusCode.FAILED_PRECONDITION, text)

    async def _activate(self, request: Any, _: object) -> Any:
        if not request.broker_id:
            raise Refusal(StatusCode.INVALID_ARGUMENT, "broker_id is missing")
        if request.broker_id != str(BROKER_ID):
            text = f"there is no broker {request.broker_id[:40]!r}"
            raise Refusal(StatusCode.NOT_FOUND, text)
        return message("danube_admin.ActivateBrokerResponse")(success=True)


_CLUSTER = ("ClusterStatus", "AddNode", "PromoteNode", "RemoveNode")
_SECURITY = (
    "CreateRole",
    "GetRole",
    "ListRoles",
    "DeleteRole",
    "CreateBinding",
    "GetBinding",
    "ListBindings",
    "DeleteBinding",
    "ListAllBindings",
)


def _all_refused(text: str, *methods: str) -> Mapping[str, Handler]:
    return {method: refusing(StatusCode.UNIMPLEMENTED, text) for method in methods}


def _url(address: str) -> str:
    """Return an address as Danube's clients want it: with a scheme."""
    return address if "://" in address or not address else f"http://{address}"
