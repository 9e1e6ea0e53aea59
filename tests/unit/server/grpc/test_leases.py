"""Which lease a message is acknowledged under."""

from ister.broker import Membership
from ister.server.grpc.leases import HELD_MAX, Held, Leases


def membership() -> Membership:
    # Leases only tell memberships apart.
    return Membership(None)  # type: ignore[arg-type]


def held(one: Membership, lease: int, due_ms: int = 100) -> Held:
    return Held(one, lease, 1, due_ms)


def test_a_message_is_taken_once() -> None:
    leases, one = Leases(), membership()
    leases.add("/default/t", "s", 5, held(one, 1), now_ms=0)

    assert leases.take("/default/t", "other", 5) is None
    assert leases.take("/default/t", "s", 6) is None
    found = leases.take("/default/t", "s", 5)
    assert found is not None
    assert found.lease == 1
    assert leases.take("/default/t", "s", 5) is None


def test_the_last_delivery_counts() -> None:
    leases, one = Leases(), membership()
    leases.add("/default/t", "s", 5, held(one, 1), now_ms=0)
    leases.add("/default/t", "s", 5, held(one, 2), now_ms=0)

    found = leases.take("/default/t", "s", 5)

    assert found is not None
    assert found.lease == 2


def test_who_leaves_holds_nothing() -> None:
    leases, one, other = Leases(), membership(), membership()
    leases.add("/default/t", "s", 1, held(one, 1), now_ms=0)
    leases.add("/default/t", "s", 2, held(other, 1), now_ms=0)

    leases.leave("/default/t", "s", one)
    leases.leave("/default/t", "s", one)

    assert leases.take("/default/t", "s", 1) is None
    assert leases.take("/default/t", "s", 2) is not None


def test_what_is_over_makes_room() -> None:
    leases, one = Leases(), membership()
    for offset in range(HELD_MAX + 1):
        leases.add("/default/t", "s", offset, held(one, 1, due_ms=offset), now_ms=10_000)

    assert leases.take("/default/t", "s", 9_999) is None
    assert leases.take("/default/t", "s", 10_000) is not None


def test_what_is_not_over_is_looked_through_seldom() -> None:
    looks = 0

    class Counted(Held):
        def __getattribute__(self, name: str) -> object:
            nonlocal looks
            looks += name == "due_ms"
            return super().__getattribute__(name)

    leases, one = Leases(), membership()
    for offset in range(HELD_MAX + 100):
        leases.add("/default/t", "s", offset, Counted(one, 1, 1, 100), now_ms=0)

    # Once, not once for each that comes.
    assert looks < 2 * HELD_MAX
