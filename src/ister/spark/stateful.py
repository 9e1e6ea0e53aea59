"""State for each key of a stream, kept by Spark: a function instead of a class of callbacks.

`per_key` covers the common shapes of `transformWithState`: counting, comparing with the last row,
collecting until something is complete, giving up after silence. State is in the checkpoint and
survives restarts; Spark calls the function once for each key of a batch.

This is Python for every row: 40,000 rows a second and core, where an aggregation in SQL does a
million. Use it for what SQL cannot say.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any, TypeAlias

from pyspark.sql import Row
from pyspark.sql.streaming.stateful_processor import (
    ExpiredTimerInfo,
    StatefulProcessor,
    StatefulProcessorHandle,
    TimerValues,
)
from pyspark.sql.types import StructType

from ister.base.errors import BadRequestError
from ister.spark.intervals import interval_ms

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

# What a function is given and gives back: the columns by name.
State: TypeAlias = Mapping[str, Any]
Result: TypeAlias = tuple[Iterable[Mapping[str, Any]], State | None]
OnRows: TypeAlias = Callable[[Any, list[Row], State | None], Result]
OnTimeout: TypeAlias = Callable[[Any, State], Iterable[Mapping[str, Any]]]

_STATE = "state"


def per_key(
    frame: "DataFrame",
    function: OnRows,
    *,
    key: str | Sequence[str],
    state: str,
    returns: str,
    timeout: str | None = None,
    time: str | None = None,
    on_timeout: OnTimeout | None = None,
    mode: str = "append",
) -> "DataFrame":
    """Return what `function` makes of each key's rows and of what it remembers of that key.

    `function(key, rows, state)` is called with the key's value (a tuple for several columns), its
    rows of this batch, in no order, and its state, `None` for a key that is new. It returns rows
    for the columns `returns` and the new state, `None` to forget the key. `state` and `returns`
    are DDL; rows and states are mappings by column. `mode` is that of the sink.

    `timeout` (`30 minutes`) forgets a key that had no rows for so long; `on_timeout(key, state)`
    may return rows then. It is measured by the column `time`, a timestamp under the frame's
    watermark: silence ends when the watermark passes it. Without `time` it is the clock's, and
    a run with `--available-now` would never end.

        def count(key, rows, state):
            seen = (state["seen"] if state else 0) + len(rows)
            return [{"card": key, "seen": seen}], {"seen": seen}

        per_key(payments, count, key="card", state="seen long", returns="card string, seen long")
    """
    keys = [key] if isinstance(key, str) else list(key)
    if on_timeout is not None and timeout is None:
        raise BadRequestError("`on_timeout` needs a `timeout`: `30 minutes`")
    if time is not None and timeout is None:
        raise BadRequestError("`time` is what a `timeout` is measured by: give both")
    processor = KeyedFunction(
        function,
        is_single=isinstance(key, str),
        state=_struct(state),
        returns=_struct(returns),
        timeout_ms=None if timeout is None else _milliseconds(timeout),
        time=time,
        on_timeout=on_timeout,
    )
    if timeout is None:
        time_mode = "none"
    else:
        time_mode = "ProcessingTime" if time is None else "EventTime"
    return frame.groupBy(*keys).transformWithState(
        statefulProcessor=processor,
        outputStructType=_struct(returns),
        outputMode=mode,
        timeMode=time_mode,
    )


class KeyedFunction(StatefulProcessor):
    """A function as Spark calls it. A key has one state and at most one timer."""

    def __init__(
        self,
        function: OnRows,
        *,
        is_single: bool,
        state: StructType,
        returns: StructType,
        timeout_ms: int | None = None,
        time: str | None = None,
        on_timeout: OnTimeout | None = None,
    ) -> None:
        self._function = function
        self._is_single = is_single
        self._state_type = state
        self._state_names = tuple(state.names)
        self._names = tuple(returns.names)
        self._timeout_ms = timeout_ms
        self._time = time
        self._on_timeout = on_timeout

    def init(self, handle: StatefulProcessorHandle) -> None:
        """Get at the state; Spark calls this in every task."""
        self._handle = handle
        self._state = handle.getValueState(_STATE, self._state_type)

    def handleInputRows(  # noqa: N802 (Spark's name)
        self,
        key: Any,
        rows: Iterator[Row],
        timerValues: TimerValues,  # noqa: N803
    ) -> Iterator[Row]:
        """Call the function with the rows of a key."""
        given = list(rows)
        made, after = self._function(self._key(key), given, self._get())
        # All of it, before the state changes: a function may be a generator that still reads it.
        results = [self._row(one) for one in made]
        if after is None:
            self._state.clear()
            self._set_timer(None)
        else:
            self._state.update(_values(after, self._state_names, "state"))
            self._set_timer(self._expiry_ms(given, timerValues))
        yield from results

    def handleExpiredTimer(  # noqa: N802 (Spark's name)
        self,
        key: Any,
        timerValues: TimerValues,  # noqa: N803
        expiredTimerInfo: ExpiredTimerInfo,  # noqa: N803
    ) -> Iterator[Row]:
        """Forget a key that was silent."""
        state = self._get()
        self._state.clear()
        if state is not None and self._on_timeout is not None:
            for one in self._on_timeout(self._key(key), state):
                yield self._row(one)

    def close(self) -> None:
        """Do nothing: there is nothing to close."""

    def _key(self, key: Any) -> Any:
        return key[0] if self._is_single else tuple(key)

    def _get(self) -> dict[str, Any] | None:
        found = self._state.get()
        return None if found is None else dict(zip(self._state_names, found, strict=True))

    def _row(self, made: Mapping[str, Any]) -> Row:
        return Row(*self._names)(*_values(made, self._names, "row"))

    def _expiry_ms(self, rows: Sequence[Row], times: TimerValues) -> int | None:
        """Return when the key has been silent for too long, if nothing more comes."""
        if self._timeout_ms is None:
            return None
        if self._time is None:
            return times.getCurrentProcessingTimeInMs() + self._timeout_ms
        seen = [row[self._time] for row in rows if row[self._time] is not None]
        newest_ms = max((_to_ms(at) for at in seen), default=times.getCurrentWatermarkInMs())
        # A late row must not bring the end closer than an earlier one has put it.
        return max([newest_ms + self._timeout_ms, *self._handle.listTimers()])

    def _set_timer(self, expiry_ms: int | None) -> None:
        if self._timeout_ms is None:
            return
        timers = list(self._handle.listTimers())
        for one in timers:
            if one != expiry_ms:
                self._handle.deleteTimer(one)
        if expiry_ms is not None and expiry_ms not in timers:
            self._handle.registerTimer(expiry_ms)


def _values(made: Mapping[str, Any], names: Sequence[str], what: str) -> tuple[Any, ...]:
    """Return a mapping's values by column; what is not there is null."""
    unknown = [name for name in made if name not in names]
    if unknown:
        raise BadRequestError(
            f"the {what} has {', '.join(map(repr, unknown))}, and its columns are "
            f"{', '.join(names)}: add it to the DDL, or leave it out"
        )
    return tuple(made.get(name) for name in names)


def _struct(ddl: str) -> StructType:
    found = StructType.fromDDL(ddl)
    assert isinstance(found, StructType), "a list of fields makes a struct"
    return found


def _milliseconds(span: str) -> int:
    try:
        return interval_ms(span)
    except ValueError as error:
        raise BadRequestError(f"`timeout` {span!r} {error}") from None


def _to_ms(at: datetime) -> int:
    return int(at.timestamp() * 1_000)
