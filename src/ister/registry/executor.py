"""What takes a while, and so is done in threads: comparing schemas, getting ready to check."""

import asyncio
import heapq
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import TypeVar

from ister.base.errors import BadSchemaError, ExtraMissingError, SchemaTooComplexError
from ister.registry.records import SubjectVersion
from ister.registry.subject import Subject, SubjectContents
from ister.schemas import (
    REASONS_MAX,
    Mode,
    Schema,
    Steps,
    incompatibilities,
    parse_schema,
    register_steps,
)

T = TypeVar("T")

# At the same time, so that a schema that takes long holds up nobody else's. In Python more threads
# do not get on faster, and each makes the event loop wait 0.5 ms for its turn.
THREADS = 2


class SchemaExecutor:
    """Does what takes a while in threads, each thing within a budget of steps.

    The threads are taken from those of the event loop, which are few: the others are left to those
    who publish and need their batches checked. The smallest definition goes first: it is done
    soonest, and who sends many large ones waits for themselves.
    """

    def __init__(self) -> None:
        self._running = 0
        self._number = 0
        self._waiting: list[tuple[int, int, asyncio.Future[None]]] = []

    async def run(self, function: Callable[[Steps], T], *, size_bytes: int) -> T:
        """Return what `function` does, which concerns a definition of `size_bytes`.

        Raises `SchemaTooComplexError`. When the caller is cancelled, the thread stops at its next
        step.
        """
        await self._take_turn(size_bytes)
        steps = register_steps()
        try:
            return await asyncio.to_thread(function, steps)
        finally:
            steps.stop()
            self._give_turn()

    async def _take_turn(self, size_bytes: int) -> None:
        if self._running < THREADS:
            self._running += 1
            return
        turn = asyncio.get_running_loop().create_future()
        self._number += 1
        heapq.heappush(self._waiting, (size_bytes, self._number, turn))
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():
                self._give_turn()  # It was ours already.
            raise

    def _give_turn(self) -> None:
        while self._waiting:
            turn = heapq.heappop(self._waiting)[2]
            if not turn.done():
                turn.set_result(None)
                return
        self._running -= 1


def breaks(
    entry: Subject,
    contents: SubjectContents,
    new: Schema,
    mode: Mode,
    steps: Steps,
    *,
    keep_required: bool = False,
) -> list[str]:
    """Return what `new` would break as the next version of a subject; empty when nothing.

    See `incompatibilities` for `keep_required`.

    Raises `SchemaTooComplexError`.
    """
    if new.type is not contents.record.type:
        # Under any mode: consumers choose by the subject how to read.
        return [f"the type changed from {contents.record.type.value} to {new.type.value}"]
    if mode is Mode.NONE:
        return []
    reasons: dict[str, None] = {}
    # The newest first: what it says is nearest to what was changed.
    numbers = contents.record.versions if mode.is_transitive else [contents.latest]
    for number in reversed(numbers):
        schema = entry.find_parsed(number)
        if schema is None:
            # Not kept: a thousand old versions would push out those in use.
            version = contents.versions[number]
            schema = parse_schema(version.type, version.definition, steps)
        found = incompatibilities(mode, new, [schema], steps, keep_required=keep_required)
        reasons.update(dict.fromkeys(found))
        if len(reasons) >= REASONS_MAX:
            break
    return list(reasons)[:REASONS_MAX]


def prepare(entry: Subject, version: SubjectVersion, steps: Steps) -> None:
    """Have a version ready to check payloads. Raises `ExtraMissingError`."""
    entry.schema(version, steps).validator()


def warm(schema: Schema) -> None:
    """Have a schema ready to check payloads, if it can."""
    # A check meets the same error, and knows whom to tell.
    with suppress(BadSchemaError, ExtraMissingError, SchemaTooComplexError):
        schema.validator()


def warm_in_background(entries: Sequence[Subject]) -> None:
    """Have the latest schemas of subjects ready, so that no first batch has to wait for that.

    In a thread that nobody waits for: neither a start with many schemas nor an end.
    """

    def work() -> None:
        for entry in entries:
            with suppress(BadSchemaError, ExtraMissingError, SchemaTooComplexError):
                warm(entry.schema(entry.contents.get(0)))

    if entries:
        threading.Thread(target=work, name="ister-schemas", daemon=True).start()
