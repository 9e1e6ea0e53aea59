"""What every operation is: a value that says what is asked of a broker.

An operation is a struct with a docstring, declared in a `Group` with the right it needs, its place
in the HTTP API and the errors a caller should be prepared for. Everything else about it follows:
dispatch, the OpenAPI document, the documentation.

Always true:
- an operation says everything about what is asked, and nothing about who asks or how;
- its fields have the names and types of the commands of the native protocol, where there is one;
- the bounds it states are those that JSON Schema can say: the broker checks all of them, and more.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, ClassVar, Generic, TypeVar, get_args, get_origin

from msgspec import Struct, structs

from ister.base.errors import IsterError

Answer = TypeVar("Answer")
T = TypeVar("T")
Declared = TypeVar("Declared", bound="type[Operation[Any]]")


class Right(StrEnum):
    """What somebody has to be allowed."""

    # To see names, settings and figures.
    LOOKUP = "lookup"
    PRODUCE = "produce"
    # To see messages, and to move the subscriptions they are consumed by.
    CONSUME = "consume"
    MANAGE = "manage"


class Made(Struct, Generic[T], frozen=True):
    """The answer to an operation that makes something, or finds it there."""

    value: T
    is_new: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Spec:
    """What is known about an operation beside its fields."""

    name: str
    tag: str
    right: Right
    # Of HTTP. The path is below `/api/v1`, as in `/namespaces/{namespace}`; `{namespace}` and
    # `{topic}` together are the field `topic`.
    method: str
    path: str
    # The errors a caller should be prepared for, beside those of every operation.
    errors: tuple[type[IsterError], ...]
    # How JSON writes the fields that are not in the path; `None`: as they are.
    body: Any
    # How JSON writes the answer (`None`: there is nothing to tell), and the function that does.
    answer: Any
    show: Callable[[Any], Any] | None
    # Whether it makes something, which may be there already.
    makes: bool
    # The field that names what it is about, empty for the broker itself.
    resource: str


class Operation(Struct, Generic[Answer], frozen=True):
    """One thing that can be asked of a broker, and answered with an `Answer`."""

    spec: ClassVar[Spec]

    @property
    def resource(self) -> str:
        """The topic, pattern, subject or namespace it is about; empty: the broker."""
        name = self.spec.resource
        return str(getattr(self, name)) if name else ""


class Group:
    """Operations of one kind, in the order of the documentation."""

    def __init__(self, tag: str) -> None:
        self.table: list[type[Operation[Any]]] = []
        self._tag = tag

    def __call__(
        self,
        right: Right,
        place: str,
        *errors: type[IsterError],
        body: Any = None,
        show: Any = None,
    ) -> Callable[[Declared], Declared]:
        """Return a decorator that declares an operation at a `place` such as `GET /topics`.

        `body` is a struct, or a union of them, that JSON writes the fields by: its method `fields`
        returns them. `show` is a function from the answer to what JSON writes.
        """
        method, _, path = place.partition(" ")

        def declare(operation: Declared) -> Declared:
            (answer,) = get_args(operation.__orig_bases__[0])  # type: ignore[attr-defined]
            makes = get_origin(answer) is Made
            shown = show.__annotations__["return"] if show is not None else answer
            shown = get_args(shown)[0] if get_origin(shown) is Made else shown
            fields = {field.name for field in structs.fields(operation)}
            named = [name for name in ("topic", "subject", "namespace") if name in fields]
            operation.spec = Spec(
                name=re.sub(r"(?<!^)(?=[A-Z])", "_", operation.__name__).lower(),
                tag=self._tag,
                right=right,
                method=method,
                path=path,
                errors=errors,
                body=body,
                answer=None if shown is type(None) else shown,
                show=show,
                makes=makes,
                resource=named[0] if named else "",
            )
            self.table.append(operation)
            return operation

        return declare
