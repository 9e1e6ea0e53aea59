"""The table of what the HTTP API does. Dispatch and the OpenAPI document both come from it.

A route is a function: its parameters `where`, `query` and `body` are the shapes of what is in the
path, behind the question mark and in the body; what it returns is the shape of the answer; its
docstring is what the documentation says. Nothing is written down twice.
"""

from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, Generic, NamedTuple, TypeVar, get_args, get_origin, get_type_hints

from ister.base.errors import IsterError

T = TypeVar("T")
# Each takes its own shapes, which `route` has read from its signature.
Action = Callable[..., Awaitable[Any]]

PREFIX = "/api/v1"


class Made(NamedTuple, Generic[T]):
    """What a request that makes something answers: 201 when it is new, else 200."""

    value: T
    is_new: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Route:
    """One operation of the API."""

    method: str
    # Below `PREFIX`, as in `/namespaces/{namespace}`.
    path: str
    tag: str
    act: Action
    # The errors a caller should be prepared for; others have the statuses of their base classes.
    errors: tuple[type[IsterError], ...]
    where: type | None
    query: type | None
    body: type | None
    # None: 204, there is nothing to tell.
    answer: type | None
    makes: bool

    @property
    def name(self) -> str:
        """The name of the operation."""
        return self.act.__name__


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
    """The routes of one part of the API, or of all."""

    def __init__(self, tag: str = "") -> None:
        self.table: list[Route] = []
        self._tag = tag
        self._root = Node()

    def route(
        self, method: str, path: str, *errors: type[IsterError]
    ) -> Callable[[Callable[..., Awaitable[T]]], Callable[..., Awaitable[T]]]:
        """Return a decorator that adds a function to the table."""

        def add(act: Callable[..., Awaitable[T]]) -> Callable[..., Awaitable[T]]:
            hints = get_type_hints(act)
            answer = hints["return"]
            makes = get_origin(answer) is Made
            self._add(
                Route(
                    method=method,
                    path=path,
                    tag=self._tag,
                    act=act,
                    errors=errors,
                    where=hints.get("where"),
                    query=hints.get("query"),
                    body=hints.get("body"),
                    answer=get_args(answer)[0] if makes else (None if _is_none(answer) else answer),
                    makes=makes,
                )
            )
            return act

        return add

    def include(self, parts: "Iterable[Routes]") -> None:
        """Add the routes of other parts."""
        for part in parts:
            for one in part.table:
                self._add(one)

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
        node = self._root
        for segment in one.path.split("/")[1:]:
            node = node.next(segment)
        assert one.method not in node.routes, f"{one.method} {one.path} is there twice"
        node.routes[one.method] = one
        self.table.append(one)


def _is_none(hint: object) -> bool:
    return hint is type(None)
