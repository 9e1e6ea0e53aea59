"""Where the columns of a batch lie in its bytes, without looking at a single message.

For those who use whole columns in place: what a column holds is for them to check.
"""

from struct import Struct
from typing import NamedTuple

from ister.base.errors import BadBatchError
from ister.codec.layout import Column

_INT = Struct("<i")
# Behind these nothing is asked for.
_FOUND: int = Column.KEY | Column.ATTRIBUTES | Column.TIMESTAMP | Column.ID | Column.OFFSET


class VariablePlace(NamedTuple):
    """A variable column: its offsets begin at `offsets`, its blob is `blob` to `end`."""

    offsets: int
    blob: int
    end: int


class Places(NamedTuple):
    """Positions in `view`, the uncompressed columns. -1 is that of a column that is not there."""

    view: memoryview
    payload: VariablePlace
    key: VariablePlace | None = None
    # Of the key: a bit for each message.
    validity: int = -1
    timestamps: int = -1
    offsets: int = -1


def find_places(view: memoryview, count: int, columns: int) -> Places:
    """Return where columns lie, or raise `BadBatchError` when they reach past the end."""
    payload = _variable(view, 0, count)
    position = (payload.end + 7) & ~7
    if not columns & _FOUND:
        _check_end(view, position)
        return Places(view, payload)
    key = None
    validity = timestamps = offsets = -1
    if columns & Column.KEY:
        validity = position
        key = _variable(view, position + _validity_bytes(count), count)
        position = (key.end + 7) & ~7
    if columns & Column.ATTRIBUTES:
        position = _behind_attributes(view, position, count)
    if columns & Column.TIMESTAMP:
        timestamps = position
        position += 8 * count
    if columns & Column.ID:
        position = (_variable(view, position + _validity_bytes(count), count).end + 7) & ~7
    if columns & Column.OFFSET:
        offsets = position
        position += 8 * count
    _check_end(view, position)
    return Places(view, payload, key, validity, timestamps, offsets)


def _variable(view: memoryview, position: int, count: int) -> VariablePlace:
    """Return where a variable column lies that begins at `position`."""
    last = position + 4 * count
    if last + 4 > len(view):
        raise BadBatchError("a column reaches past the end of the batch")
    (size,) = _INT.unpack_from(view, last)
    blob = (last + 11) & ~7
    if size < 0 or blob + size > len(view):
        raise BadBatchError("a column reaches past the end of the batch")
    return VariablePlace(position, blob, blob + size)


def _behind_attributes(view: memoryview, position: int, count: int) -> int:
    last = position + 4 * count
    if last + 4 > len(view):
        raise BadBatchError("a column reaches past the end of the batch")
    (items,) = _INT.unpack_from(view, last)
    if items < 0:
        raise BadBatchError("offsets of a column do not rise from 0")
    names = _variable(view, (last + 11) & ~7, items)
    return (_variable(view, (names.end + 7) & ~7, items).end + 7) & ~7


def _validity_bytes(count: int) -> int:
    return ((count + 7) // 8 + 7) & ~7


def _check_end(view: memoryview, position: int) -> None:
    if position > len(view):
        raise BadBatchError("a column reaches past the end of the batch")
