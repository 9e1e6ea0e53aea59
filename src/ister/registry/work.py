"""What takes a while, and so is done in threads: comparing schemas, getting ready to check."""

import asyncio
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import ParamSpec, TypeVar

from ister.base.errors import BadSchemaError, ExtraMissingError
from ister.registry.records import SubjectVersion
from ister.registry.shelf import Contents, Shelf
from ister.schemas import Mode, Schema, incompatibilities, parse_schema

P = ParamSpec("P")
T = TypeVar("T")


class Aside:
    """Does what takes a while in a thread, one thing after the other.

    In Python two threads do not get on faster than one; and the threads of the event loop, which
    are few, are left to those who publish and need their batches checked.
    """

    def __init__(self) -> None:
        self._turn = asyncio.Lock()

    async def run(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Return what `function` does."""
        async with self._turn:
            return await asyncio.to_thread(function, *args, **kwargs)


def breaks(shelf: Shelf, contents: Contents, new: Schema, mode: Mode) -> list[str]:
    """Return what `new` would break as the next version of a subject; empty when nothing."""
    if new.type is not contents.record.type:
        # Under any mode: consumers choose by the subject how to read.
        return [f"the type changed from {contents.record.type.value} to {new.type.value}"]
    if mode is Mode.NONE:
        return []
    numbers = contents.record.versions if mode.is_transitive else [contents.latest]
    earlier = []
    for number in numbers:
        schema = shelf.find_parsed(number)
        if schema is None:
            # Not kept: a thousand old versions would push out those in use.
            version = contents.versions[number]
            schema = parse_schema(version.type, version.definition)
        earlier.append(schema)
    return incompatibilities(mode, new, earlier)


def prepare(shelf: Shelf, version: SubjectVersion) -> None:
    """Have a version ready to check payloads. Raises `ExtraMissingError`."""
    shelf.schema(version).validator()


def warm(schema: Schema) -> None:
    """Have a schema ready to check payloads, if it can."""
    # A guard meets the same error, and knows whom to tell.
    with suppress(BadSchemaError, ExtraMissingError):
        schema.validator()


def warm_in_background(shelves: Sequence[Shelf]) -> None:
    """Have the latest schemas of subjects ready, so that no first batch has to wait for that.

    In a thread that nobody waits for: neither a start with many schemas nor an end.
    """

    def work() -> None:
        for shelf in shelves:
            with suppress(BadSchemaError, ExtraMissingError):
                warm(shelf.schema(shelf.contents.get(0)))

    if shelves:
        threading.Thread(target=work, name="ister-schemas", daemon=True).start()
