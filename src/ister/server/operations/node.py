"""What operations act on, and what an operation that is under way is."""

from collections.abc import Awaitable, Callable, Coroutine, Generator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Generic, TypeAlias, TypeVar

from ister.base.errors import BadRequestError, IsterError
from ister.broker import Broker
from ister.server.operations import waiting

if TYPE_CHECKING:
    from ister.registry import Registry

Answer = TypeVar("Answer")
T = TypeVar("T")
Done = Callable[[Answer | IsterError], object]
# A listing in steps, between which others have their turn. The last step is the answer.
Steps: TypeAlias = Generator[None, None, Answer]


@dataclass(slots=True)
class Node:
    """A broker with its registry and its doors."""

    broker: Broker
    # `None` for a broker without schemas.
    known_registry: "Registry | None" = None
    # The open doors by name (`native`, `http`, `grpc`, `admin`), as `host:port`.
    doors: dict[str, str] = field(default_factory=dict)
    # What Danube's clients are told to connect to; empty when that is not known.
    advertised: str = ""

    @property
    def registry(self) -> "Registry":
        """The schema registry; raises `BadRequestError` when this broker has none."""
        if self.known_registry is None:
            raise BadRequestError("this broker keeps no schemas: it was started without a registry")
        return self.known_registry


class Pending(Generic[Answer]):
    """A change that the broker has begun or is about to, and calls back when it is done."""

    def __init__(
        self, begin: Callable[[Callable[[Any], object]], object], answer: Callable[[Any], Answer]
    ) -> None:
        """`begin` takes what to call with an error or a value, `answer` makes of it the answer."""
        self._begin = begin
        self._answer = answer

    def begin(self, done: "Done[Answer]") -> None:
        """Begin now; `done` is called once, with the answer or an error."""

        def on_done(result: Any) -> None:
            if not isinstance(result, IsterError):
                try:
                    result = self._answer(result)
                except IsterError as error:
                    result = error
            done(result)

        self._begin(on_done)


def nothing(_: object) -> None:
    """The answer of what has nothing to tell."""


# What carrying out an operation begins with: its answer, or how to come by it.
Begun: TypeAlias = Answer | Pending[Answer] | Steps[Answer] | Coroutine[Any, Any, Answer]


def in_task(work: Awaitable[None], done: Callable[[IsterError | None], object]) -> None:
    """Have `work` done by a task of its own, whoever waits for it, and tell how it ended."""

    async def run() -> None:
        try:
            await work
        except IsterError as error:
            done(error)
        else:
            done(None)

    waiting.keep(run())
