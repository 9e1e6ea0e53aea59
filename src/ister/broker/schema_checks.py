"""Schema checks: batches for a topic that is bound to a schema are checked before they are taken.

Always true: a topic that is bound to nothing costs one look at its `schema_check`. A long
check is for a thread: the broker says so, and a door has it done there before it goes on.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from ister.base.limits import (
    CHECK_BYTES_MAX,
    CHECK_COUNT_MAX,
    CHECK_SHORT_WORK_MAX,
    CHECK_WORK_MAX,
)
from ister.codec import Batch


class SchemaCheck(Protocol):
    """Knows the schema that a topic is bound to. May be asked from any thread."""

    def check(self, batch: Batch) -> None:
        """Raise `SchemaViolationError` for a batch that is to be refused."""

    def weight(self, batch: Batch) -> int:
        """Tell how much work each byte of a batch is: 1 for most schemas, 0 for none."""


@dataclass(frozen=True, slots=True)
class LongCheck:
    """The check of some batches. To be called in any thread; raises what is wrong."""

    pairs: Sequence[tuple[SchemaCheck, Batch]]
    # Checks of one lane are made one at a time: more threads would not be faster, and each keeps
    # the interpreter from the event loop for a while. Short checks do not wait for long ones.
    lane: str

    def __call__(self) -> None:
        for schema_check, batch in self.pairs:
            check(schema_check, batch)


# The schema check of a topic by its name; `None` when nothing is to be checked.
SchemaCheckOf = Callable[[str], SchemaCheck | None]


def no_schema_check(_: str) -> SchemaCheck | None:
    """For a broker that knows no schemas."""
    return None


def check(schema_check: SchemaCheck, batch: Batch) -> None:
    """Check a batch at once."""
    try:
        schema_check.check(batch)
    finally:
        # What was unpacked is of no use any more, and may wait in memory for a while.
        batch.forget_columns()


def long_check(pairs: Sequence[tuple[SchemaCheck, Batch]]) -> LongCheck | None:
    """Return the check of some batches, if it would hold up the event loop."""
    count = size_bytes = work = 0
    for schema_check, batch in pairs:
        weight = schema_check.weight(batch)
        if weight:
            batch_bytes = max(batch.size_bytes, batch.columns_bytes)
            count += batch.count
            size_bytes += batch_bytes
            work += batch_bytes * weight
    if count <= CHECK_COUNT_MAX and size_bytes <= CHECK_BYTES_MAX and work <= CHECK_WORK_MAX:
        return None
    return LongCheck(pairs, "short checks" if work <= CHECK_SHORT_WORK_MAX else "long checks")
