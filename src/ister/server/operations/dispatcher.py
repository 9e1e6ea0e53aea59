"""The one way to what operations do: who asks is checked, counted and logged here.

Always true:
- nothing is asked of the broker by a door without going through `Dispatcher.admit`, but for what
  goes on on a channel that was admitted when it was opened (messages, acknowledgements, credit);
- an operation begins when it is asked for, so two that come on one connection begin in their order;
- it is answered once, with its answer or an error.
"""

import asyncio
from collections import Counter
from collections.abc import Callable, Coroutine, Generator
from typing import TYPE_CHECKING, Any, cast

import structlog

from ister.base.errors import IsterError
from ister.broker import Broker
from ister.operations import Answer, Operation, Right
from ister.server.operations import waiting
from ister.server.operations.node import Begun, Done, Node, Pending, Steps
from ister.server.operations.policy import INSIDE, Caller, Policy
from ister.server.operations.table import ACTIONS

if TYPE_CHECKING:
    from ister.registry import Registry

# Runs what has to wait by a task, and tells how it ended.
InTask = Callable[[Coroutine[Any, Any, Any], Done[Any]], object]


class Dispatcher:
    """Carries out operations on one broker."""

    def __init__(
        self,
        broker: Broker,
        registry: "Registry | None" = None,
        *,
        policy: Policy | None = None,
        logger: structlog.typing.BindableLogger | None = None,
    ) -> None:
        self.node = Node(broker, registry)
        self._policy = policy or Policy()
        self._logger: Any = logger or structlog.get_logger("operations")
        # How often each was asked for, by its name and the door.
        self.counts: Counter[tuple[str, str]] = Counter()

    def admit(self, caller: Caller, right: Right, name: str, *resources: str) -> None:
        """Count what somebody asks for, or raise `DeniedError`."""
        self.counts[name, caller.door] += 1
        for resource in resources:
            self._policy.check(caller, right, resource)
        if right is Right.MANAGE:
            self._logger.debug(
                "operation",
                operation=name,
                resources=resources,
                door=caller.door,
                caller=caller.name,
                address=caller.address,
            )

    async def run(self, operation: Operation[Answer], caller: Caller = INSIDE) -> Answer:
        """Carry out an operation and return its answer, or raise."""
        begun = self._begin(operation, caller)
        if isinstance(begun, Pending):
            return await waiting.result(begun.begin)
        if isinstance(begun, Generator):
            return await _walk(begun)
        if isinstance(begun, Coroutine):
            return await cast("Coroutine[Any, Any, Answer]", begun)
        return begun

    def start(
        self, operation: Operation[Answer], caller: Caller, done: Done[Answer], in_task: InTask
    ) -> Steps[None] | None:
        """Begin an operation; `done` is called with its answer, or an error, now or later.

        Returns the steps of one that takes long, which the caller goes through. Raises what is
        wrong with the operation itself. What has to wait for more than the broker is given to
        `in_task`.
        """
        begun = self._begin(operation, caller)
        if isinstance(begun, Generator):
            return _tell(begun, done)
        if isinstance(begun, Pending):
            begun.begin(done)
        elif isinstance(begun, Coroutine):
            in_task(begun, done)
        else:
            done(begun)
        return None

    def _begin(self, operation: Operation[Answer], caller: Caller) -> Begun[Answer]:
        spec = operation.spec
        self.admit(caller, spec.right, spec.name, operation.resource)
        return cast("Begun[Answer]", ACTIONS[type(operation)](self.node, operation))


async def _walk(steps: Steps[Answer]) -> Answer:
    """Go through the steps of a listing, between which others have their turn."""
    while True:
        try:
            next(steps)
        except StopIteration as end:
            return cast("Answer", end.value)
        await asyncio.sleep(0)


def _tell(steps: Steps[Answer], done: Done[Answer]) -> Steps[None]:
    try:
        answer = yield from steps
    except IsterError as error:
        done(error)
    else:
        done(answer)
