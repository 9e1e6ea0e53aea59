"""A short life of a broker in which everything durable happens that a client can ask for."""

from tests.crash.customer import Customer, part, snapshot
from tests.crash.life import START_MS, Life
from tests.crash.machine import OpenBackend, on_disk
from tests.crash.promises import Promises, Stand

from ister.base import EARLIEST, Durability
from ister.testing import Crash, FaultyDisk

PLAIN, PARTS, SOFT = "/default/plain", "/default/parts", "/default/soft"
NEW = "/default/new"
ORDERS, LATE, JOBS = "/shop/orders", "/shop/late", "/default/jobs"
WORK, FAN, ALL, GONE = (PLAIN, "work"), (PARTS, "fan"), ("/shop/*", "all"), (PLAIN, "gone")
WORKERS = (JOBS, "workers")
LETTERS = "/default/plain-work-dlq"
BEGIN_MS = 1_700_000_000_000
# When a machine that stopped somewhere in the workload is found again.
AFTER_MS = BEGIN_MS + 60_000
STARTS_MAX = 4


def live(disk: FaultyDisk, promises: Promises, open_backend: OpenBackend = on_disk) -> Customer:
    """Begin with an empty disk and use a broker on it; return its customer at the end."""
    customer = Customer(start(disk, BEGIN_MS, open_backend), promises)
    opening_day(customer)
    busy_day(customer)
    day_of_transactions(customer)
    restart(customer)
    last_day(customer)
    return customer


def live_until_crash(disk: FaultyDisk, open_backend: OpenBackend = on_disk) -> Promises:
    """Use a broker until the disk stops, or to the end; return what was promised."""
    promises = Promises()
    try:
        live(disk, promises, open_backend)
    except Crash:
        pass
    return promises


def start(disk: FaultyDisk, now_ms: int, open_backend: OpenBackend) -> Life:
    """Start a broker; when the disk fails meanwhile, start it again."""
    for attempt in range(STARTS_MAX):
        if attempt == STARTS_MAX - 1:
            disk.heal()
        try:
            return Life(disk, now_ms=now_ms, open_backend=open_backend)
        except OSError:
            continue
    raise AssertionError("the disk is healed, and the broker does not start")


def restart(customer: Customer) -> None:
    """Stop in good order, as far as the disk lets the broker, and start again."""
    life = customer.life
    try:
        life.close()
    except OSError:
        pass  # Whatever was acknowledged is on the disk.
    else:
        customer.promises.on_synced()
    customer.move_to(start(life.disk, life.clock.now_ms() + START_MS, life.open_backend))
    customer.come_back()


def opening_day(customer: Customer) -> None:
    """Topics and subscriptions are made, and the first messages sent."""
    do, create, send = customer.do, customer.create, customer.send
    do(create(PLAIN), create(PARTS, partitions=2), create(SOFT, durability=Durability.OS))
    do(customer.create_namespace("shop"), customer.create_namespace("attic"))
    do(create(ORDERS), create(JOBS, retention="workqueue"), apart=True)
    do(
        customer.subscribe(*ALL),
        customer.subscribe(*WORK, type="shared", max_deliveries=2),
        customer.subscribe(*FAN),
        # Two ask for the same, and both are told when it is there.
        customer.subscribe(*GONE),
        customer.subscribe(*GONE),
        customer.subscribe(*WORKERS),
    )
    do(send(PLAIN, "p", 30, 40, 50), send(PLAIN, "q", 300), send(PLAIN, "p", 20), apart=True)
    do(send(SOFT, "s", 20, 20), send(SOFT, "s", 30), apart=True)
    # The subscription by pattern covers it from the beginning.
    do(
        create(LATE),
        create(LATE),
        send(part(PARTS, 0), "p", 100, 100),
        send(part(PARTS, 1), "p", 10),
    )
    do(send(LATE, "p", 50), send(ORDERS, "p", 20, expected=0), send(JOBS, "p", 10, 10, 10, 10))


def busy_day(customer: Customer) -> None:
    """Messages are acknowledged and given back, while others come and a checkpoint is written."""
    do, send, ack = customer.do, customer.send, customer.ack
    do(send(PLAIN, "i", 20, 20, ids=("a", "b")))
    known = customer.promises.sent[-1].payloads[0]
    do(send(PLAIN, "i", 25, ids=("a", "c"), repeats=[known]), send(PLAIN, "p", 10), apart=True)
    do(ack(WORK, PLAIN, 0))
    do(ack(WORK, PLAIN, 2, confirm=False))
    customer.life.pass_time(0.1)
    # Once more, and now it matters.
    do(ack(WORK, PLAIN, 2))
    customer.bury(WORK, PLAIN, 1, letters=LETTERS)
    # Retention may take what is done, and nothing else.
    customer.promises.purged[JOBS] = (0, 2)
    do(customer.fail(WORK, PLAIN, 3), ack(WORKERS, JOBS, 0, 1, 3, confirm=False))
    do(customer.pause(WORKERS, paused=True))
    do(ack(ALL, LATE, 0), send(SOFT, "s", 20), apart=True)
    tend(customer)
    do(send(PLAIN, "p", 200, 200), ack(WORK, PLAIN, 4), ack(FAN, part(PARTS, 0), 1), apart=True)
    customer.life.tidy()
    do(ack(WORK, PLAIN, 6, confirm=False), send(part(PARTS, 0), "q", 15, 15))
    do(send(SOFT, "s", 700))


def day_of_transactions(customer: Customer) -> None:
    """Transactions, places saved and gone back to, messages purged and topics deleted."""
    do, send, ack = customer.do, customer.send, customer.ack
    first, second = part(PARTS, 0), part(PARTS, 1)
    do(customer.transact("t-1", [(PLAIN, 40), (first, 40)], [(FAN, second, 0)]))
    do(customer.save_cursor(FAN, "here"), customer.delete_namespace("attic"))
    do(ack(FAN, first, 0, 2))
    do(customer.seek(FAN, EARLIEST, {first: Stand(), second: Stand()}))
    do(ack(FAN, first, 0), send(first, "p", 30), customer.grow(PARTS, 3), apart=True)
    do(send(part(PARTS, 2), "p", 10, 10))
    do(
        customer.seek(
            FAN,
            snapshot("here"),
            {
                first: Stand(0, {1}, {1}),
                second: Stand(1, set(), set()),
                part(PARTS, 2): Stand(),
            },
        )
    )
    do(
        customer.transact("t-2", [(first, 30), (PLAIN, 700), (LATE, 20)], [(WORK, PLAIN, 5)]),
        send(PLAIN, "p", 10),
        apart=True,
    )
    do(customer.purge(PLAIN, 2), customer.drop_cursor(FAN, "here"))
    # Not on the disk yet when the checkpoint is begun.
    do(send(SOFT, "s", 15))
    begin_to_tend(customer)
    do(send(PLAIN, "q", 30, 600), customer.unsubscribe(GONE), send(SOFT, "s", 5), apart=True)
    customer.life.tidy()
    do(customer.delete(ORDERS), send(LATE, "p", 30), apart=True)
    do(customer.create(ORDERS))
    do(send(ORDERS, "p", 15), ack(ALL, LATE, 1))
    do(ack(WORK, PLAIN, 7, confirm=False))


def operations(open_backend: OpenBackend = on_disk) -> int:
    """Count the operations of the whole workload."""
    disk = FaultyDisk()
    live_until_crash(disk, open_backend)
    return len(disk.operations)


def last_day(customer: Customer) -> None:
    """The broker was started again: everybody goes on, and half of it is deleted."""
    do, send, ack = customer.do, customer.send, customer.ack
    for transaction in customer.promises.transactions:
        do(customer.repeat_transaction(transaction, with_acks=False))
    do(send(PLAIN, "p", 30), send(PLAIN, "q", 20), send(SOFT, "s", 30), apart=True)
    do(ack(ALL, ORDERS, 0), ack(FAN, part(PARTS, 0), 3), customer.subscribe(*GONE), apart=True)
    # Larger than a whole file.
    do(send(part(PARTS, 1), "p", 4_200), send(LATE, "q", 10))
    do(customer.transact("t-3", [(LATE, 20)], [(WORK, PLAIN, 8), (ALL, LATE, 2)]))
    begin_to_tend(customer)
    do(customer.create(NEW), send(LATE, "q", 10), apart=True)
    do(customer.subscribe(NEW, "new"))
    customer.life.tidy()
    do(customer.purge(PLAIN, 5), send(SOFT, "s", 20), apart=True)
    do(customer.purge_all(PARTS), customer.pause(WORKERS, paused=False))
    do(customer.delete(PARTS))
    do(send(PLAIN, "p", 10), ack(WORK, PLAIN, 9, 10))
    tend(customer)
    customer.life.tidy()
    do(send(SOFT, "s", 10))
    do(ack(ALL, LATE, 3, confirm=False))
    customer.life.pass_time(0.1)


def begin_to_tend(customer: Customer) -> None:
    """As `tend`, and have the next things happen while the broker gathers what it knows."""
    customer.life.clock.advance(3.0)


def tend(customer: Customer) -> None:
    """Let so much time pass that the broker begins a checkpoint, to be written by `tidy`."""
    customer.life.pass_time(3.0)
