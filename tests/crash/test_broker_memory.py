"""What a broker knows is what a restart finds, whatever was asked of it together and failed."""

import errno
from collections.abc import Callable
from itertools import permutations

import msgspec
import pytest
from tests.crash.business import AFTER_MS, BEGIN_MS
from tests.crash.customer import Customer
from tests.crash.life import Life
from tests.crash.promises import Found, Promises, look

from ister.base import EARLIEST, AckSettings, StreamSettings
from ister.base.errors import StorageFailedError
from ister.broker import Transaction
from ister.codec import Batch, encode
from ister.testing import Fault, FaultyDisk
from ister.wire import BACKOFF_DELAY

A, B, PARTS = "/default/a", "/default/b", "/default/many"
ONE, ALL = (A, "one"), ("/default/*", "all")
Ask = Callable[[Callable[..., None]], object]


def begin() -> Customer:
    """Return the customer of a broker with two topics, messages and subscriptions."""
    customer = Customer(Life(FaultyDisk(), now_ms=BEGIN_MS), Promises())
    customer.do(customer.create(A), customer.create(B), customer.create(PARTS, partitions=1))
    customer.do(customer.subscribe(*ONE), customer.subscribe(*ALL), customer.subscribe(PARTS, "s"))
    customer.do(customer.create_namespace("attic"))
    customer.do(customer.send(A, "p", 10, 10, 10), customer.send(B, "p", 10))
    # There is something to go back to.
    customer.do(customer.ack(ONE, A, 0))
    return customer


def requests(customer: Customer) -> dict[str, Ask]:
    """Return what may be asked together."""
    life = customer.life
    broker, durables = life.broker, life.broker.durables
    one, every = customer.attached[ONE], customer.attached[ALL]
    lease, lease_of_all = one.last(A, 1).lease, every.last(A, 0).lease
    stream = StreamSettings()

    def send(tell: Callable[..., None]) -> None:
        batch = Batch(b"".join(encode([b"new"], producer=b"p", first_sequence=3)))
        broker.store(customer.producer(A, "p"), batch, tell)

    def transact(tell: Callable[..., None]) -> None:
        transaction = Transaction("t")
        broker.stage(transaction, 0, Batch(b"".join(encode([b"to a"]))))
        broker.stage(transaction, 1, Batch(b"".join(encode([b"to b"]))))
        broker.commit(transaction, [A, B], [(one.membership.durables, lease, 1, 2)], tell)

    def ack(tell: Callable[..., None]) -> None:
        one.membership.ack([(lease, 1, 2)])
        life.broker.durables.confirm(life.storage, tell)

    def nack(tell: Callable[..., None]) -> None:
        one.membership.nack([(lease, 2, 3, 0)], BACKOFF_DELAY)
        life.broker.durables.confirm(life.storage, tell)

    def ack_in_all(tell: Callable[..., None]) -> None:
        every.membership.ack([(lease_of_all, 0, 1)])
        life.broker.durables.confirm(life.storage, tell)

    return {
        "delete": lambda tell: broker.delete_topic(A, tell),
        "create": lambda tell: broker.create_topic(A, tell, kind="stream", stream=stream),
        "create new": lambda tell: broker.create_topic("/default/new", tell, kind="stream"),
        "create partitioned": lambda tell: broker.create_topic(
            "/default/parts", tell, kind="stream", partitions=2
        ),
        "grow": lambda tell: broker.grow_topic(PARTS, 2, tell, kind="stream"),
        "grow more": lambda tell: broker.grow_topic(PARTS, 3, tell, kind="stream"),
        "delete partitioned": lambda tell: broker.delete_topic(PARTS, tell),
        "create namespace": lambda tell: broker.create_namespace("attic", tell),
        "delete namespace": lambda tell: broker.delete_namespace("attic", tell),
        "create in namespace": lambda tell: broker.create_topic("/attic/a", tell, kind="stream"),
        "purge": lambda tell: broker.purge(A, 1, tell),
        "send": send,
        "transact": transact,
        "ack": ack,
        "nack": nack,
        "ack in all": ack_in_all,
        "subscribe": customer.subscribe(A, "other").issue,
        "subscribe again": customer.subscribe(*ONE).issue,
        "unsubscribe": lambda tell: durables.delete(*ONE, tell),
        "seek": lambda tell: durables.seek(*ONE, EARLIEST, tell),
        "save": lambda tell: durables.save_cursor(*ONE, "saved", tell),
        "set": lambda tell: durables.set_acks(*ONE, AckSettings(poison="drop"), tell),
        "pause": lambda tell: durables.pause(*ONE, tell, paused=True),
    }


def known(found: Found) -> dict[str, object]:
    """Return what is found, but for numbers given to what came to nothing."""
    ledger = msgspec.msgpack.decode(found.state)
    del ledger["topic_number"], ledger["subscription_number"]
    ledger["topics"].sort(key=str)
    # One on nothing is as good as deleted: the next start does so.
    # What was counted of redeliveries and dead letters since the last checkpoint is missing.
    ledger["subscriptions"] = sorted(
        (row[:-2] for row in ledger["subscriptions"] if row[2] or "*" in row[0][2]), key=str
    )
    return {"stored": found.topics, "there": found.namespaces, **ledger}


@pytest.mark.parametrize("fault", [None, 0, 2], ids=["no error", "error", "error in between"])
def test_what_a_broker_knows_is_what_a_restart_finds(fault: int | None) -> None:
    names = list(requests(begin()))
    for first, second in permutations(names, 2):
        customer = begin()
        life, asked = customer.life, requests(customer)
        if fault is not None:
            life.disk.fail(Fault(errno.EIO, at=len(life.disk.operations) + fault))
        answers = [life.ask(asked[first])]
        life.turn()
        answers.append(life.ask(asked[second]))
        life.settle()
        life.disk.heal()
        # Time for a recovery, and for acknowledgements that nobody waits for.
        life.pass_time(1.5)

        assert [answer.told for answer in answers] == [1, 1], (first, second)
        assert known(look(life)) == known(after_restart(life)), (first, second)
        # A checkpoint keeps what is in memory.
        life.pass_time(3.0)
        life.tidy()
        assert known(look(life)) == known(after_restart(life)), (first, second)


def test_a_failed_move_keeps_what_a_transaction_before_it_acknowledged() -> None:
    customer = begin()
    life, asked = customer.life, requests(customer)
    committed = life.ask(asked["transact"])
    life.turn()
    life.disk.fail(Fault(errno.EIO, at=len(life.disk.operations)))
    moved = life.ask(asked["seek"])
    life.settle()

    assert isinstance(moved.value, StorageFailedError)
    assert committed.value == [3, 1]
    assert look(life).cursors[ONE][A].is_acked(1)


def test_a_failed_move_keeps_what_became_a_dead_letter_before_it() -> None:
    customer, key = begin(), (A, "strict")
    life = customer.life
    customer.do(customer.subscribe(*key, max_deliveries=1))
    customer.bury(key, A, 0, letters="/default/a-strict-dlq")
    attached = customer.attached[key]
    written = len(life.disk.operations)
    attached.membership.nack([(attached.last(A, 1).lease, 1, 2, 0)], BACKOFF_DELAY)
    while len(life.disk.operations) == written:
        life.turn()
    life.disk.fail(Fault(errno.EIO, at=len(life.disk.operations)))
    life.ask(lambda tell: life.broker.durables.seek(*key, EARLIEST, tell))
    life.settle()

    found = look(life)
    assert found.topics["/default/a-strict-dlq"].origins == (0, 1)
    # Else it dies a second time.
    assert found.cursors[key][A].is_acked(1)


def after_restart(life: Life) -> Found:
    """Return what the next life of a broker finds when this one is killed."""
    again = Life(life.disk.reopen("all"), now_ms=AFTER_MS)
    again.settle()
    return look(again)
