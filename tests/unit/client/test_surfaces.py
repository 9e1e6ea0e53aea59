"""The blocking client offers what the asyncio client does: names, parameters, `with`, iteration."""

import inspect

import pytest

import ister
from ister.client import aio, sync
from ister.client.aio.schemas import Schemas as AioSchemas
from ister.client.aio.view import ViewLoading
from ister.client.sync.schemas import Schemas

PAIRS: dict[str, tuple[type, type]] = {
    name: (getattr(aio, name), getattr(sync, name))
    for name in sync.__all__
    if inspect.isclass(getattr(sync, name))
} | {"Schemas": (AioSchemas, Schemas)}

# What the modules of the asyncio client need of each other, and applications do not.
INNER = {
    "Client": {"answers", "link", "open"},
    "Producer": {
        "check", "closed", "due", "encodes", "send_delayed", "send_encoded", "send_request",
        "with_ttl",
    },
    "Schemas": {"learn", "reference", "writer"},
    "Subscription": {
        "bring", "drop_with", "handed_out", "hold_until_settled", "leave", "settle",
    },
    "Timeline": {"commit", "due_ms", "learn_time", "put_change"},
    "TimelineConsumer": {"due_ms", "leave"},
    "TimelineLease": {"due_ms", "lateness_us"},
    "View": {"ends_at", "fold", "follower", "take"},
}  # fmt: skip
# What one has as a property, and the other sets when it is made.
FIELDS = {
    "TimelineLease": {"attempt", "id", "payload", "priority"},
    "TimelineTransaction": {"results"},
}
# What the asyncio client has as `await`; futures of the blocking one take a timeout.
AWAITED = {"BatchFuture": {"result"}, "SendFuture": {"result", "exception"}}
# Sync only: what the modules of the blocking client need of each other.
OUTER = {
    "Client": {"ack", "answer", "batch_limits", "confirm", "ended", "extend", "hand_over"},
    "Producer": {"hand_over", "post", "wait_for"},
}


def names(cls: type) -> set[str]:
    """Return the public methods and properties of a class."""
    return {
        name
        for name, value in inspect.getmembers(cls)
        if not name.startswith("_") and (callable(value) or isinstance(value, property))
    }


@pytest.mark.parametrize("name", PAIRS)
def test_the_blocking_class_has_the_methods_of_the_asyncio_class(name: str) -> None:
    theirs, ours = map(names, PAIRS[name])

    fields = FIELDS.get(name, set())
    assert theirs - ours - fields == INNER.get(name, set())
    assert ours - theirs - fields == OUTER.get(name, set()) | (AWAITED.get(name, set()) - theirs)


@pytest.mark.parametrize("name", PAIRS)
def test_shared_methods_take_the_same_parameters(name: str) -> None:
    theirs, ours = PAIRS[name]
    shared = names(theirs) & names(ours) - AWAITED.get(name, set())

    def parameters(cls: type, method: str) -> list[tuple[str, object]]:
        found = inspect.signature(getattr(cls, method)).parameters.values()
        return [(one.name, one.default) for one in found]

    methods = [one for one in shared if callable(getattr(theirs, one))]
    assert [one for one in methods if parameters(theirs, one) != parameters(ours, one)] == []


@pytest.mark.parametrize(
    ("theirs", "ours"), [*PAIRS.values(), (ViewLoading, sync.View), (ister.View, sync.View)]
)
def test_blocks_and_loops_work_in_both(theirs: type, ours: type) -> None:
    if hasattr(theirs, "__aenter__"):
        assert hasattr(ours, "__enter__")
        assert hasattr(ours, "__exit__")
    if hasattr(theirs, "__aiter__"):
        assert hasattr(ours, "__iter__")
