"""The table of what the HTTP API does, made from the operations. OpenAPI is made from it as well.

What is in the path, behind the question mark and in the body are the fields of the operation: each
of these parts has a shape, a struct that the request is converted to. Nothing is written twice.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Annotated, Any, get_args, get_origin

from msgspec import NODEFAULT, Meta, Struct, defstruct, structs
from msgspec import field as struct_field

from ister.operations import NamespaceName, Operation

PREFIX = "/api/v1"


@dataclass(frozen=True, slots=True, kw_only=True)
class Route:
    """One operation, and the shapes of what a request says; `None`: there is nothing to say."""

    operation: type[Operation[Any]]
    where: type[Struct] | None
    query: type[Struct] | None
    # A struct, or a union of them.
    body: Any

    def bind(self, where: Struct | None, query: Struct | None, body: Any) -> Operation[Any]:
        """Return what a request asks for."""
        given: dict[str, Any] = {}
        for part in (where, query):
            if part is not None:
                given |= structs.asdict(part)
        if body is not None:
            given |= body.fields() if self.operation.spec.body else structs.asdict(body)
        if "namespace" in given and "topic" in given:
            given["topic"] = f"/{given.pop('namespace')}/{given['topic']}"
        return self.operation(**given)


def route_of(operation: type[Operation[Any]]) -> Route:
    """Return how an operation is asked for by HTTP."""
    spec = operation.spec
    fields = {one.name: one for one in structs.fields(operation)}
    in_path = re.findall(r"{(\w+)}", spec.path)
    where: list[Any] = []
    for name in in_path:
        if name in fields:
            own = fields.pop(name)
            where.append((name, _extra(own.type).get("tail", own.type)))
        else:
            # The first half of the name of a topic.
            where.append((name, NamespaceName))
    apart = {name for name, own in fields.items() if _extra(own.type).get("in") == "query"}
    if spec.method == "GET":
        apart = set(fields)
    query = [_field(own) for name, own in fields.items() if name in apart]
    rest = [_field(own) for name, own in fields.items() if name not in apart]
    return Route(
        operation=operation,
        where=_shape(operation, "Path", where),
        query=_shape(operation, "Query", query),
        body=spec.body or _shape(operation, "", rest),
    )


def _extra(kind: Any) -> dict[str, Any]:
    metas = get_args(kind)[1:] if get_origin(kind) is Annotated else ()
    return next((one.extra or {} for one in metas if isinstance(one, Meta)), {})


def _field(own: structs.FieldInfo) -> tuple[str, Any] | tuple[str, Any, Any]:
    if own.default is not NODEFAULT:
        return own.name, own.type, own.default
    if own.default_factory is not NODEFAULT:
        return own.name, own.type, struct_field(default_factory=own.default_factory)
    return own.name, own.type


def _shape(operation: type, ending: str, fields: list[Any]) -> type[Struct] | None:
    if not fields:
        return None
    # Those with defaults last, as everywhere in Python.
    fields.sort(key=len)
    about = {"__doc__": operation.__doc__}
    name = operation.__name__ + ending
    return defstruct(name, fields, namespace=about, forbid_unknown_fields=True)


@dataclass(slots=True)
class Node:
    """A place in the tree of paths."""

    words: dict[str, "Node"] = field(default_factory=dict)
    parameter: "Node | None" = None
    parameter_name: str = ""
    routes: dict[str, Route] = field(default_factory=dict)

    def next(self, segment: str) -> "Node":
        """Return the place one segment further, making it if needed."""
        if not segment.startswith("{"):
            return self.words.setdefault(segment, Node())
        if self.parameter is None:
            self.parameter = Node()
            self.parameter_name = segment[1:-1]
        assert self.parameter_name == segment[1:-1], f"{segment} has two names"
        return self.parameter


class Routes:
    """The routes of some operations, by path and method."""

    def __init__(self, operations: Iterable[type[Operation[Any]]]) -> None:
        self.table: list[Route] = []
        self._root = Node()
        for operation in operations:
            self._add(route_of(operation))

    def find(self, segments: list[str]) -> tuple[dict[str, Route], dict[str, str]] | None:
        """Return the routes of a path by method, and its parameters; `None` for no path."""
        node = self._root
        where = {}
        for segment in segments:
            found = node.words.get(segment)
            if found is None:
                if node.parameter is None or not segment:
                    return None
                where[node.parameter_name] = segment
                found = node.parameter
            node = found
        return (node.routes, where) if node.routes else None

    def _add(self, one: Route) -> None:
        node, spec = self._root, one.operation.spec
        for segment in spec.path.split("/")[1:]:
            node = node.next(segment)
        assert spec.method not in node.routes, f"{spec.method} {spec.path} is there twice"
        node.routes[spec.method] = one
        self.table.append(one)
