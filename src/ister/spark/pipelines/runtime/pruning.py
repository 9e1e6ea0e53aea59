"""Which columns of a source a pipeline needs at all.

Spark tells a source in Python nothing of that: it would read and send every column. A source that
is read with fewer is up to twice as fast, so the plans are looked at before the queries start, and
the sources are loaded again with what was found in them.

What is asked for here are internals of Spark. When they are not as expected, nothing is found,
and every column is read.
"""

from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

# Steps of a plan that are looked at; a plan of a hundred joins has a thousand.
NODES_MAX = 10_000


def used_columns(
    spark: "SparkSession", frames: "Iterable[DataFrame]", sources: "Mapping[str, DataFrame]"
) -> dict[str, set[str]]:
    """Return, by source, the columns that the frames need of it; nothing when one cannot tell."""
    with suppress(Exception):  # As said above.
        return _used_columns(spark, frames, sources)
    return {}


def _used_columns(
    spark: Any, frames: Iterable[Any], sources: Mapping[str, Any]
) -> dict[str, set[str]]:
    known = {
        number: (source, name)
        for source, frame in sources.items()
        for number, name in _attributes(_analyzed_plan(frame).output())
    }
    found: dict[str, set[str]] = {source: set() for source in sources}
    optimizer = spark._jsparkSession.sessionState().optimizer()  # noqa: SLF001 (see above)
    for frame in frames:
        plan = optimizer.execute(_analyzed_plan(frame))
        wanted = dict(_attributes(plan.output()))
        for node in _nodes(plan):
            if not node.children().isEmpty():
                wanted |= dict(_attributes(node.references().toSeq()))
                if node.nodeName() == "Union":
                    # It takes columns by their place, and refers to none of its second branch.
                    for branch in _each(node.children()):
                        wanted |= dict(_attributes(branch.output()))
            elif "Streaming" in node.nodeName() and not _is_known(node, known):
                # A source that is read twice in one query, under other numbers.
                return {}
        for number in wanted:
            if number in known:
                source, name = known[number]
                found[source].add(name)
    return found


def _analyzed_plan(frame: Any) -> Any:
    return frame._jdf.queryExecution().analyzed()  # noqa: SLF001 (see above)


def _is_known(leaf: Any, known: Mapping[int, tuple[str, str]]) -> bool:
    return all(number in known for number, _ in _attributes(leaf.output()))


def _nodes(plan: Any) -> Iterator[Any]:
    pending = [plan]
    count = 0
    while pending:
        node = pending.pop()
        count += 1
        if count > NODES_MAX:
            # What lies behind may need any column.
            raise OverflowError(f"a plan of more than {NODES_MAX} steps")
        yield node
        pending.extend(_each(node.children()))


def _attributes(sequence: Any) -> Iterator[tuple[int, str]]:
    for one in _each(sequence):
        yield int(one.exprId().id()), str(one.name())


def _each(sequence: Any) -> Iterator[Any]:
    for slot in range(sequence.length()):
        yield sequence.apply(slot)
