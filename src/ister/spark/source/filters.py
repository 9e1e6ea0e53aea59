"""Filters that Spark pushes down to a batch read: which are accepted, and which rows they keep.

Spark does not evaluate an accepted filter again. So a row is kept only when all of them are true,
as in SQL: not when one of them is null. A filter whose meaning is not known exactly is returned.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from ister.spark.offsets import OffsetRange, base_of
from ister.spark.source import arrow

# The columns whose filters are accepted, and the type of the value they are compared with.
_VALUES: Final[Mapping[str, type]] = {
    "topic": str,
    "partition": int,
    "offset": int,
    "publish_time": datetime,
    "producer": str,
    "key": str,
}
TYPES: Final[Mapping[str, pa.DataType]] = {name: arrow.TYPES[name] for name in _VALUES}
# The same for all messages of a stream.
_OF_STREAM: Final = ("topic", "partition")

_COMPARISONS: Final[Mapping[str, Callable[[Any, Any], Any]]] = {
    "EqualTo": pc.equal,
    "GreaterThan": pc.greater,
    "GreaterThanOrEqual": pc.greater_equal,
    "LessThan": pc.less,
    "LessThanOrEqual": pc.less_equal,
    "StringStartsWith": lambda array, value: pc.starts_with(array, value.as_py()),
    "StringEndsWith": lambda array, value: pc.ends_with(array, value.as_py()),
    "StringContains": lambda array, value: pc.match_substring(array, value.as_py()),
}


@dataclass(frozen=True, slots=True)
class Condition:
    """One filter: `test` is the name of Spark's class for it."""

    column: str
    test: str
    value: Any = None
    negated: bool = False


def accept(given: object, names: Collection[str]) -> Condition | None:
    """Return a filter of Spark as a condition on a column, or `None` to leave it to Spark.

    `names` are the columns that the read has, with their own types.
    """
    kind = type(given).__name__
    if kind == "Not":
        inner = accept(getattr(given, "child", None), names)
        return replace(inner, negated=not inner.negated) if inner is not None else None
    attribute: tuple[str, ...] = getattr(given, "attribute", ())
    if len(attribute) != 1 or attribute[0] not in names or attribute[0] not in _VALUES:
        return None
    column = attribute[0]
    value: Any = getattr(given, "value", None)
    match kind:
        case "IsNull" | "IsNotNull":
            return Condition(column, kind)
        case "In":
            fits = all(one is None or _fits(column, one) for one in value)
            return Condition(column, kind, tuple(value)) if fits else None
        case "EqualNullSafe":
            fits = value is None or _fits(column, value)
            return Condition(column, kind, value) if fits else None
    if kind not in _COMPARISONS or not _fits(column, value):
        return None
    if kind.startswith("String") and TYPES[column] != pa.string():
        return None
    return Condition(column, kind, value)


def narrow(ranges: Sequence[OffsetRange], conditions: Sequence[Condition]) -> list[OffsetRange]:
    """Return `ranges` without the offsets for which the conditions cannot be true."""
    start, end = _span(conditions)
    fixed = [one for one in conditions if one.column in _OF_STREAM]
    found = []
    for one in ranges:
        if fixed and not _holds_for_stream(one.stream, fixed):
            continue
        cut = replace(one, start=max(one.start, start), end=min(one.end, end))
        if cut.start < cut.end:
            found.append(cut)
    return found


def left_over(conditions: Sequence[Condition]) -> list[Condition]:
    """Return the conditions that `narrow` does not ensure; rows have to be checked for them."""
    return [one for one in conditions if one.column not in _OF_STREAM and not _is_span(one)]


def select(batch: pa.RecordBatch, conditions: Sequence[Condition]) -> pa.RecordBatch:
    """Return the rows of `batch` for which all conditions are true."""
    mask = None
    for one in conditions:
        found = truth(batch.column(one.column), one)
        # With Kleene's `and`, false wins over null; either way the row is dropped.
        mask = found if mask is None else pc.and_kleene(mask, found)
    return batch if mask is None else batch.filter(mask)


def truth(array: pa.Array, condition: Condition) -> pa.Array:
    """Return true, false or null for each value."""
    found = _plain_truth(array, condition)
    return pc.invert(found) if condition.negated else found


def _plain_truth(array: pa.Array, condition: Condition) -> pa.Array:
    type_ = array.type
    match condition.test:
        case "IsNull":
            return pc.is_null(array)
        case "IsNotNull":
            return pc.is_valid(array)
        case "EqualNullSafe" if condition.value is None:
            return pc.is_null(array)
        case "EqualNullSafe":
            return pc.fill_null(pc.equal(array, pa.scalar(condition.value, type_)), False)
        case "In":
            return _membership(array, condition.value)
    return _COMPARISONS[condition.test](array, pa.scalar(condition.value, type_))


def _membership(array: pa.Array, values: Sequence[Any]) -> pa.Array:
    known = pa.array([one for one in values if one is not None], array.type)
    found = pc.is_in(array, value_set=known)
    # Null is in nothing and not in nothing; and with a null among them, whoever is not found
    # might still be that one.
    unknown = pc.is_null(array)
    if len(known) < len(values):
        unknown = pc.or_(unknown, pc.invert(found))
    return pc.if_else(unknown, pa.scalar(None, pa.bool_()), found)


def _fits(column: str, value: object) -> bool:
    if not isinstance(value, _VALUES[column]) or isinstance(value, bool):
        return False
    if isinstance(value, datetime):
        return value.tzinfo is not None
    return not isinstance(value, int) or _in_type(column, value)


def _in_type(column: str, value: int) -> bool:
    end = 1 << (TYPES[column].bit_width - 1)
    return bool(-end <= value < end)


def _is_span(condition: Condition) -> bool:
    """Whether a condition is a bound of the offsets, and nothing else."""
    return (
        condition.column == "offset"
        and not condition.negated
        and condition.test
        in ("EqualTo", "GreaterThan", "GreaterThanOrEqual", "LessThan", "LessThanOrEqual")
    )


def _span(conditions: Sequence[Condition]) -> tuple[int, int]:
    """Return the offsets, from and to, that all bounds together leave."""
    start, end = 0, 2**63
    for one in conditions:
        if one.column == "offset" and not one.negated and one.test == "In":
            known = [value for value in one.value if value is not None]
            start = max(start, min(known, default=end))
            end = min(end, max(known, default=0) + 1)
        if not _is_span(one):
            continue
        if one.test in ("EqualTo", "GreaterThanOrEqual"):
            start = max(start, one.value)
        if one.test == "GreaterThan":
            start = max(start, one.value + 1)
        if one.test in ("EqualTo", "LessThanOrEqual"):
            end = min(end, one.value + 1)
        if one.test == "LessThan":
            end = min(end, one.value)
    return start, end


def _holds_for_stream(stream: str, conditions: Sequence[Condition]) -> bool:
    topic, partition = base_of(stream)
    values = {"topic": topic, "partition": partition}
    return all(
        truth(pa.array([values[one.column]], TYPES[one.column]), one)[0].as_py() is True
        for one in conditions
    )
