"""Words for tests of stores: changes that must succeed, and changes that must be refused."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence

import pytest

from ister.base.errors import (
    IsterError,
)
from ister.timeline import (
    Change,
    Changed,
    Delete,
    Done,
    Extend,
    Lease,
    Move,
    Outcome,
    Put,
    Release,
    Row,
    Store,
    Update,
    Work,
)

Open = Callable[[], Store]

NOW = 1_000_000
START = (-(2**62), 0)
END = 2**62 - 1


def behind(time_ms: int) -> tuple[int, int]:
    """Return the last place at a time."""
    return time_ms, END


def apply(store: Store, *changes: Change, now: int = NOW) -> list[Outcome]:
    """Make changes, each for itself; return their outcomes."""
    (outcomes,) = store.apply(now, [Work(list(changes))])
    assert isinstance(outcomes, list)
    assert len(outcomes) == len(changes)
    return outcomes


def make(store: Store, change: Change, now: int = NOW) -> Changed:
    """Make a change that must succeed."""
    (outcome,) = apply(store, change, now=now)
    assert isinstance(outcome, Changed), outcome
    return outcome


def refused(store: Store, change: Change, now: int = NOW) -> type[IsterError]:
    """Make a change that must be refused, alone and in atomic work; return why."""
    (outcome,) = apply(store, change, now=now)
    assert isinstance(outcome, IsterError), outcome
    assert store.apply(now, [Work([change], atomic=True)]) == [Like(outcome)]
    return type(outcome)


def lease(store: Store, message: Changed | Row, holder: str, until: int, now: int = NOW) -> Row:
    """Have a message of topic 1 leased."""
    change = Lease(store.topics()[0].number, message.seq, message.version, holder, until)
    (outcome,) = apply(store, change, now=now)
    assert isinstance(outcome, Row), outcome
    return outcome


def everything(store: Store, topic: int) -> list[Row]:
    """Return all messages of a topic, by position and seq."""
    return store.page(topic, START[0], END, START, 10_000)


def ids(rows: Sequence[Row]) -> list[str]:
    return [row.id for row in rows]


class Like:
    """Equal to an error of the same class that says the same."""

    def __init__(self, error: IsterError) -> None:
        self._error = error

    def __eq__(self, other: object) -> bool:
        return type(other) is type(self._error) and str(other) == str(self._error)

    def __hash__(self) -> int:
        return hash(str(self._error))


class StoreTests(ABC):
    """Tests of a store that is open, and has a topic."""

    @pytest.fixture
    @abstractmethod
    def open_store(self) -> Open:
        """Return what opens the same timelines, again and again."""

    @pytest.fixture
    def store(self, open_store: Open) -> Iterator[Store]:
        store = open_store()
        yield store
        store.close()

    @pytest.fixture
    def topic(self, store: Store) -> int:
        return store.create_topic("/default/reminders", "timeline", b"").number

    @pytest.fixture
    def put(self, topic: int) -> Callable[..., Put]:
        """Make a `Put` of a topic: of group "shop", due at `NOW + 1_000`."""

        def make_put(name: str, due: int = NOW + 1_000, level: int = 0, group: str = "shop") -> Put:
            return Put(topic, name, group, due, f"payload of {name}".encode(), b"\x80", level)

        return make_put


def owners_change(kind: str, topic: int, name: str, group: str, version: int) -> Change:
    """Return a change of an owner: a move is to the time 7."""
    changes: dict[str, Change] = {
        "move": Move(topic, name, group, 7, version),
        "update": Update(topic, name, group, b"other", b"", version),
        "delete": Delete(topic, name, group, version),
    }
    return changes[kind]


def holders_change(kind: str, topic: int, name: str, holder: str, version: int) -> Change:
    """Return a change of a holder, to a time an hour from now."""
    later = NOW + 3_600_000
    changes: dict[str, Change] = {
        "extend": Extend(topic, name, holder, version, later),
        "release": Release(topic, name, holder, version, later),
        "done": Done(topic, name, holder, version),
    }
    return changes[kind]
