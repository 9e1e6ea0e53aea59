"""The table of routes: which operation a path and a method lead to, and in which shapes."""

import msgspec
import pytest

from ister import operations
from ister.operations import OPERATIONS, CreateTopic, DescribeVersion, ListTopics, PurgeTopic
from ister.server.http.routes import Routes, route_of

ROUTES = Routes(OPERATIONS)


@pytest.mark.parametrize(
    ("path", "names", "where"),
    [
        ("topics", ["list_topics"], {}),
        ("broker", ["describe_broker"], {}),
        ("schemas/orders/check", ["check_schema"], {"subject": "orders"}),
        (
            "namespaces/shop/topics/orders/purge",
            ["purge_topic"],
            {"namespace": "shop", "topic": "orders"},
        ),
    ],
)
def test_a_path_leads_to_its_operations_with_its_parameters(
    path: str, names: list[str], where: dict[str, str]
) -> None:
    found = ROUTES.find(path.split("/"))

    assert found is not None
    assert [route.operation.spec.name for route in found[0].values()] == names
    assert found[1] == where


@pytest.mark.parametrize("path", ["", "topic", "topics/", "schemas/x/y", "schemas/x/versions//"])
def test_other_paths_lead_nowhere(path: str) -> None:
    assert ROUTES.find(path.split("/")) is None


def test_fields_are_in_the_path_the_query_or_the_body() -> None:
    listing, purge = route_of(ListTopics), route_of(PurgeTopic)
    version = route_of(DescribeVersion)

    assert (listing.where, listing.body) == (None, None)
    assert names_of(listing.query) == ["kind", "pattern", "limit", "after"]
    assert (names_of(purge.where), purge.query) == (["namespace", "topic"], None)
    assert names_of(purge.body) == ["before"]
    assert (names_of(version.where), version.query) == (["subject", "version"], None)


def test_a_body_may_be_written_otherwise_than_the_operation_is() -> None:
    route = route_of(CreateTopic)
    assert route.where is not None
    assert route.query is not None
    body = msgspec.convert({"kind": "cron", "max_leases": 3}, route.body)

    found = route.bind(route.where("shop", "orders"), route.query(), body)
    assert isinstance(found, CreateTopic)
    assert (found.topic, found.kind, found.partitions) == ("/shop/orders", "cron", 0)
    assert found.timeline is not None
    assert (found.timeline.kind, found.timeline.max_leases) == ("cron", 3)


def test_every_operation_has_a_route_of_its_own() -> None:
    assert [route.operation for route in ROUTES.table] == OPERATIONS
    declared = {
        one
        for one in vars(operations).values()
        if isinstance(one, type) and issubclass(one, operations.Operation)
    }
    assert declared == {*OPERATIONS, operations.Operation}


def names_of(shape: type[msgspec.Struct] | None) -> list[str]:
    assert shape is not None
    return list(shape.__struct_fields__)
