"""The table of routes: which function a path and a method lead to."""

import pytest
from msgspec import Struct

from ister.server.http.routes import Made, Routes


class Where(Struct):
    """A path."""

    a: str = ""
    b: str = ""


class Told(Struct):
    """An answer."""


def some_routes() -> Routes:
    routes = Routes("tag")

    @routes.route("GET", "/things")
    async def things(_: object) -> Told:
        """List."""
        return Told()

    @routes.route("GET", "/things/newest")
    async def newest(_: object) -> None:
        """Tell."""

    @routes.route("PUT", "/things/{a}")
    async def make(_: object, where: Where, body: Told) -> Made[Told]:
        """Make."""
        return Made(body, is_new=True)

    @routes.route("GET", "/things/{a}/parts/{b}")
    async def part(_: object, where: Where) -> Told:
        """Tell."""
        return Told()

    return routes


@pytest.mark.parametrize(
    ("path", "names", "where"),
    [
        ("things", ["things"], {}),
        ("things/newest", ["newest"], {}),
        ("things/x", ["make"], {"a": "x"}),
        ("things/x/parts/y", ["part"], {"a": "x", "b": "y"}),
    ],
)
def test_a_path_leads_to_its_functions_with_its_parameters(
    path: str, names: list[str], where: dict[str, str]
) -> None:
    found = some_routes().find(path.split("/"))

    assert found is not None
    assert [route.name for route in found[0].values()] == names
    assert found[1] == where


@pytest.mark.parametrize("path", ["", "thing", "things/", "things/x/parts", "things/x/parts//"])
def test_other_paths_lead_nowhere(path: str) -> None:
    assert some_routes().find(path.split("/")) is None


def test_a_route_has_the_shapes_of_its_function() -> None:
    things, newest, make, _ = some_routes().table

    assert (things.answer, things.makes, things.where) == (Told, False, None)
    assert newest.answer is None
    assert (make.answer, make.makes, make.where, make.body) == (Told, True, Where, Told)


def test_parts_are_put_together() -> None:
    routes = Routes()

    routes.include([some_routes()])

    assert len(routes.table) == 4
    assert routes.find(["things"]) is not None
    assert {route.tag for route in routes.table} == {"tag"}
