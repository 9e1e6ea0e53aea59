"""Messages at a point in time, what may be done to them, and what comes of it.

    waiting     nobody has it, and it is due later
    prefetched  a consumer has it, but it is not due yet: its lease is not alive, and the owner may
                change it
    available   due, and nobody has it, or the lease of whoever had it is over (it is *lost* then)
    processing  due, and leased: until `position_ms` only the holder does anything to it

The state is not stored: it follows from `due_ms`, `position_ms`, `holder` and the time. A lease is
a move: it sets `position_ms` to its end, and one that is over is simply due again.

The time is the wall clock's, and that may be set back. A message that was processing does not
become a prefetched one by that: whoever makes changes says up to when messages have been due
(`Work.begun_ms`). Everything else goes by the clock as it is: were it held at the latest time it
ever showed, one that was a year ahead for a minute would end every lease at once for a year.

The values of changes are checked where they come into the broker, and nowhere else: an id is 1 to
255 bytes of UTF-8 without zeros, times are below `FAR`, a level is 0 to 31. A store decides what
depends on the messages it has.

Every change of a message gives it a new version, except that one which was sent ahead and given
back before it was due is what it was, with the version its owner knows (`Release.former`). Versions
rise over all topics of a store and are never given twice, so that who comes with an old one is
refused also when a message of the same id was made anew. The first is the message's `seq`: of those
at one position, the older goes first.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

# Behind all times and numbers, and minus that is before them. Every database has room for both.
FAR = 2**62


class Row(NamedTuple):
    """A message as it is stored."""

    topic: int
    seq: int
    id: str
    version: int
    # Of a priority topic: 0, which goes before all others, to 31.
    level: int
    # When it is due; and where it stands in the order: the same, or the end of its lease.
    due_ms: int
    position_ms: int
    # Who owns it: the group of producers that made it.
    group: str
    # The consumer that has it, or had it last; empty when it is free.
    holder: str
    # How often it was leased and not given back unused.
    leases: int
    payload: bytes
    # As they came: a map in msgpack. Empty: none.
    attributes: bytes = b""


class Slot(NamedTuple):
    """What is kept of a message in memory until it is due."""

    position_ms: int
    seq: int
    version: int
    due_ms: int
    # Whether somebody has it: then `position_ms` is the end of a lease.
    held: bool


# Changes of the owner


class Put(NamedTuple):
    """Make a message. Refused when its id is there: `MessageExistsError`."""

    topic: int
    id: str
    group: str
    due_ms: int
    payload: bytes
    attributes: bytes = b""
    level: int = 0


class Move(NamedTuple):
    """Make a message due at another time. Here and below, `version` 0 is any."""

    topic: int
    id: str
    group: str
    due_ms: int
    version: int = 0


class Update(NamedTuple):
    """Give a message another payload, and other attributes."""

    topic: int
    id: str
    group: str
    payload: bytes
    attributes: bytes = b""
    version: int = 0


class Delete(NamedTuple):
    """Remove a message."""

    topic: int
    id: str
    group: str
    version: int = 0


# Changes of consumers


class Lease(NamedTuple):
    """Give a message to a consumer until `until_ms`, if it is free, at that very version.

    Free: nobody has it, or the lease of who has it is over. It need not be due yet.
    """

    topic: int
    seq: int
    version: int
    holder: str
    until_ms: int


class Extend(NamedTuple):
    """Keep a message longer, or shorter."""

    topic: int
    id: str
    holder: str
    version: int
    until_ms: int


class Release(NamedTuple):
    """Give a message back, to be due at `due_ms`; with `unused`, as if it had not been leased.

    With `former`, which was its version before a lease that never began, it has that again.
    """

    topic: int
    id: str
    holder: str
    version: int
    due_ms: int
    unused: bool = False
    former: int = 0


class Done(NamedTuple):
    """Remove a message that was dealt with. Who knows its `seq` spares the store looking for it."""

    topic: int
    id: str
    holder: str
    version: int
    seq: int = 0


class Bury(NamedTuple):
    """Move a free message that was leased too often to a topic of dead letters, due now.

    It keeps everything but its topic, its place and its id, which gets the version behind it when
    the other topic has one of that id; and its level with `flat`, for a topic that has none. With
    `origin`, the name of its topic, its attributes say that, how often it was leased, and `reason`.
    With `holder` it is not free: that consumer, whose lease is alive, rejects it.
    """

    topic: int
    seq: int
    version: int
    letters: int
    flat: bool = False
    holder: str = ""
    origin: str = ""
    reason: str = ""


class Redrive(NamedTuple):
    """Move a free dead letter back to the topic numbered `origin`, due now.

    It has not been leased then, and its attributes do not say any more that it was a dead letter;
    `flat` and the rest are as for `Bury`.
    """

    topic: int
    seq: int
    version: int
    origin: int
    flat: bool = False


Change = Put | Move | Update | Delete | Lease | Extend | Release | Done | Bury | Redrive


class Changed(NamedTuple):
    """What a message is after a change; the versions it had before are void."""

    id: str
    version: int
    seq: int
    due_ms: int
    position_ms: int


class Work(NamedTuple):
    """Changes that are made together, in their order.

    `atomic`: all or nothing, else each for itself. `begun_ms`: leases of messages that were due by
    then have begun, also when the clock is behind that by now.
    """

    changes: "list[Change]"
    atomic: bool = False
    begun_ms: int = 0


def is_leased(row: Row, now_ms: int, begun_ms: int) -> bool:
    """Return whether a lease of the message is alive: then nobody but its holder changes it."""
    return bool(row.holder) and row.due_ms <= begun_ms and now_ms < row.position_ms


# Of values in the right order: a third of what calling the class takes.
new_row: Callable[[type[Row], tuple[Any, ...]], Row] = tuple.__new__
new_changed: Callable[[type[Changed], tuple[Any, ...]], Changed] = tuple.__new__
