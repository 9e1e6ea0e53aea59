"""What is done with a disk that was found after a stop: look, restart, go on, look again."""

from copy import deepcopy

from tests.crash.business import AFTER_MS
from tests.crash.customer import Customer
from tests.crash.life import START_MS, Life
from tests.crash.machine import OpenBackend, content, on_disk
from tests.crash.promises import Found, Promises, check, look

from ister.broker.storage.storage import CHECKPOINT_S_MIN
from ister.testing import FaultyDisk


def verify(
    disk: FaultyDisk,
    promises: Promises,
    *,
    power_cut: bool = True,
    go_on: bool = True,
    open_backend: OpenBackend = on_disk,
) -> None:
    """Open what was found; check every promise; start again, and see that nothing has changed.

    With `go_on`, repeat everything, and check again.
    """
    life = Life(disk, now_ms=AFTER_MS, open_backend=open_backend)
    found = open_and_look(life)
    check(found, promises, power_cut=power_cut)
    # What was shown once stays: neither lost by another power cut nor joined by more.
    before, again = written(disk), disk.reopen("none")
    second = Life(again, now_ms=AFTER_MS + START_MS, open_backend=open_backend)
    assert open_and_look(second).is_same(found), "a second restart has changed something"
    if second.has_files:
        # In a store a new owner puts up its fence.
        assert written(again) == before
    if not go_on:
        return
    customer = Customer(life, _seen_so_far(promises, found, power_cut=power_cut))
    check_deliveries(customer, found)
    repeat_everything(customer)
    check(open_and_look(life), customer.promises, power_cut=False)
    life = Life(disk.reopen("none"), now_ms=AFTER_MS + 2 * START_MS, open_backend=open_backend)
    check(open_and_look(life), customer.promises)


def written(disk: FaultyDisk) -> dict[str, bytes]:
    """Return every file, without what was allocated ahead."""
    return {name: data.rstrip(b"\0") for name, data in content(disk).items()}


def open_and_look(life: Life) -> Found:
    """Let a broker that was just started finish what it does first, and look at it."""
    life.settle()
    return look(life)


def _seen_so_far(promises: Promises, found: Found, *, power_cut: bool) -> Promises:
    """Return what is promised to who has seen what was found: the rest was never there."""
    seen = deepcopy(promises)
    for sent in seen.sent:
        if power_cut and not sent.safe:
            sent.answered = None
    for transaction in seen.transactions:
        if transaction.word not in found.transactions:
            # Its leases are void: it can be repeated, but without its acknowledgements.
            for key, topic, offset in transaction.acks:
                for stand in seen.stands[key, topic]:
                    stand.may.discard(offset)
            transaction.acks.clear()
    return seen


def check_deliveries(customer: Customer, found: Found) -> None:
    """Fail unless each subscription delivers exactly what it has not acknowledged."""
    promises = customer.promises
    for key, cursors in found.cursors.items():
        options = promises.options[key]
        assert options.acks is not None
        expected = {
            (topic, offset)
            for topic, cursor in cursors.items()
            for start, end in cursor.gaps(
                found.topics[topic].offsets.start, found.topics[topic].offsets.stop
            )
            for offset in range(start, end)
            if not 0 < options.acks.max_deliveries <= cursor.failures_of(offset)
            and key not in found.paused
        }
        _, inbox = customer.life.attach(options)
        delivered = [(d.topic, d.offset) for d in inbox.deliveries]
        assert len(delivered) == len(set(delivered)), f"{key} was sent something twice"
        assert set(delivered) == expected, f"{key} was sent {set(delivered) ^ expected}"


def repeat_everything(customer: Customer) -> None:
    """Send everything once more that was ever sent: whatever is stored is not stored again."""
    promises, there = customer.promises, customer.life.broker.streams.by_name
    for sent in promises.sent:
        if sent.topic in there:
            customer.do(customer.repeat(sent))
    for transaction in promises.transactions:
        if all(topic in there for topic, _ in transaction.parts):
            customer.do(customer.repeat_transaction(transaction, with_acks=False))
    for name in there:
        customer.do(customer.send(name, "last", 10))
    customer.life.pass_time(CHECKPOINT_S_MIN + 1)
    customer.life.tidy()
