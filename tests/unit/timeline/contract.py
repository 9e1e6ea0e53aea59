"""What every store of timelines must do. See `Store` and `ister.timeline.rules`."""

from collections.abc import Callable

import pytest
from tests.unit.timeline.acts import (
    END,
    NOW,
    START,
    Open,
    apply,
    behind,
    everything,
    ids,
    lease,
    make,
    owners_change,
    refused,
)
from tests.unit.timeline.leasing import LeasingContract

from ister.base.errors import (
    MessageChangedError,
    MessageExistsError,
    MessageLeasedError,
    MessageNotFoundError,
    NotOwnerError,
    TimelineLeaseLostError,
    TopicExistsError,
    TopicNotFoundError,
)
from ister.timeline import (
    Bury,
    Change,
    Changed,
    Delete,
    Done,
    Extend,
    Lease,
    Move,
    Put,
    Row,
    Slot,
    Store,
    Update,
    Work,
)

__all__ = ["Open", "StoreContract"]


class StoreContract(LeasingContract):
    """What every store must do. Subclasses supply `open_store` and add nothing."""

    # Topics

    def test_topics_are_found_again_with_their_settings(
        self, store: Store, open_store: Open
    ) -> None:
        made = [store.create_topic(name, "priority", b"\x00\xff") for name in ("/a/b", "/a/a")]
        store.close()

        again = open_store()
        assert sorted(again.topics()) == sorted(made)
        again.close()
        assert made[0][1:] == ("/a/b", "priority", b"\x00\xff")

    def test_a_topic_of_the_same_name_is_refused(self, store: Store) -> None:
        store.create_topic("/a/b", "timeline", b"")

        with pytest.raises(TopicExistsError):
            store.create_topic("/a/b", "priority", b"")
        assert len(store.topics()) == 1

    def test_a_topic_that_is_deleted_is_gone_with_its_messages_and_its_number(
        self, store: Store, put: Callable[..., Put], topic: int, open_store: Open
    ) -> None:
        other = store.create_topic("/default/other", "timeline", b"").number
        apply(store, put("a"), Put(other, "a", "shop", NOW, b"kept"))

        store.delete_topic(topic)
        store.delete_topic(topic)

        assert [row.number for row in store.topics()] == [other]
        assert everything(store, topic) == []
        assert store.get(topic, "a") is None
        assert store.count(topic, *(START[0], END)) == 0
        assert store.levels(topic) == {}
        assert store.scan(topic, 0, START, END, 10) == []
        assert refused(store, put("a")) is TopicNotFoundError
        assert refused(store, Delete(topic, "a", "shop")) is MessageNotFoundError
        assert ids(everything(store, other)) == ["a"]
        store.delete_topic(other)
        store.close()
        again = open_store()
        assert again.create_topic("/default/reminders", "timeline", b"").number not in (
            topic,
            other,
        )
        again.close()

    # Putting

    def test_a_message_that_was_put_is_as_it_was_put(
        self, store: Store, put: Callable[..., Put], topic: int
    ) -> None:
        made = make(store, put("ä", level=3))

        assert made == Changed("ä", made.version, made.version, NOW + 1_000, NOW + 1_000)
        due = NOW + 1_000
        assert store.get(topic, "ä") == Row(
            topic,
            made.seq,
            "ä",
            made.version,
            3,
            due,
            due,
            "shop",
            "",
            0,
            "payload of ä".encode(),
            b"\x80",
        )
        assert store.get(topic, "a") is None

    def test_a_message_whose_id_is_there_is_refused(
        self, store: Store, put: Callable[..., Put], topic: int
    ) -> None:
        first, again, other = apply(store, put("a"), put("a", due=5), put("b"))

        assert isinstance(first, Changed)
        assert isinstance(again, MessageExistsError)
        assert isinstance(other, Changed)
        assert refused(store, put("b", group="other")) is MessageExistsError
        assert [(r.id, r.version) for r in everything(store, topic)] == [
            ("a", first.version),
            ("b", other.version),
        ]

    def test_two_topics_have_messages_of_the_same_id(
        self, store: Store, put: Callable[..., Put], topic: int
    ) -> None:
        other = store.create_topic("/default/other", "timeline", b"").number
        apply(store, put("a"), Put(other, "a", "shop", 5, b"other"))

        assert [row.due_ms for row in everything(store, topic)] == [NOW + 1_000]
        assert [row.due_ms for row in everything(store, other)] == [5]

    @pytest.mark.parametrize("due", [0, -5, END, -(2**62) + 1])
    def test_a_message_may_be_due_at_any_time(
        self, store: Store, put: Callable[..., Put], topic: int, due: int
    ) -> None:
        make(store, put("a", due=due))

        assert [slot.due_ms for slot in store.scan(topic, 0, START, END, 10)] == [due]

    def test_payloads_are_kept_to_the_byte(self, store: Store, topic: int) -> None:
        payloads = [b"", b"\0", bytes(range(256)), b"x" * 300_000]
        changes = [Put(topic, f"p{n}", "g", NOW, p) for n, p in enumerate(payloads)]
        apply(store, *changes)

        assert [row.payload for row in everything(store, topic)] == payloads

    # Changes of the owner

    def test_a_moved_message_stands_at_its_new_time_and_has_a_new_version(
        self, store: Store, put: Callable[..., Put], topic: int
    ) -> None:
        made, _ = make(store, put("a")), make(store, put("b", due=NOW + 2_000))

        moved = make(store, Move(topic, "a", "shop", NOW + 3_000, made.version))

        assert moved == Changed("a", moved.version, made.seq, NOW + 3_000, NOW + 3_000)
        assert moved.version > made.version
        assert ids(everything(store, topic)) == ["b", "a"]

    def test_an_updated_message_keeps_its_place_and_has_a_new_version(
        self, store: Store, put: Callable[..., Put], topic: int
    ) -> None:
        made = make(store, put("a"))

        updated = make(store, Update(topic, "a", "shop", b"new", b"\x81", made.version))

        assert updated == made._replace(version=updated.version)
        assert updated.version > made.version
        row = store.get(topic, "a")
        assert row is not None
        assert (row.payload, row.attributes) == (b"new", b"\x81")
        assert [slot.version for slot in store.scan(topic, 0, START, END, 10)] == [updated.version]

    def test_a_deleted_message_is_gone_and_its_id_is_free(
        self, store: Store, put: Callable[..., Put], topic: int
    ) -> None:
        made = make(store, put("a"))

        gone = make(store, Delete(topic, "a", "shop", made.version))

        assert gone.id == "a"
        assert everything(store, topic) == []
        assert store.scan(topic, 0, START, END, 10) == []
        again = make(store, put("a"))
        assert again.seq > gone.version > made.version

    @pytest.mark.parametrize("kind", ["move", "update", "delete"])
    def test_an_owner_s_change_needs_the_message_the_group_and_the_version(
        self, store: Store, put: Callable[..., Put], topic: int, kind: str
    ) -> None:
        def change(name: str = "a", group: str = "shop", version: int = 0) -> Change:
            return owners_change(kind, topic, name, group, version)

        made = make(store, put("a"))
        before = everything(store, topic)

        assert refused(store, change(name="b")) is MessageNotFoundError
        assert refused(store, change(group="other")) is NotOwnerError
        assert refused(store, change(group="other", version=99)) is NotOwnerError
        assert refused(store, change(version=made.version + 1)) is MessageChangedError
        assert everything(store, topic) == before
        make(store, change(version=made.version))

    @pytest.mark.parametrize("kind", ["move", "update", "delete"])
    def test_not_even_the_owner_changes_what_is_leased(
        self, store: Store, put: Callable[..., Put], topic: int, kind: str
    ) -> None:
        row = lease(store, make(store, put("a", due=NOW)), "c-1", NOW + 10)
        change = owners_change(kind, topic, "a", "shop", 0)

        assert refused(store, change) is MessageLeasedError
        assert refused(store, change, now=NOW + 9) is MessageLeasedError
        stale = owners_change(kind, topic, "a", "shop", row.version - 1)
        assert refused(store, stale, now=NOW + 9) is MessageChangedError
        assert store.get(topic, "a") == row
        make(store, change, now=NOW + 10)

    @pytest.mark.parametrize("kind", ["move", "update", "delete"])
    def test_the_owner_changes_what_is_prefetched_up_to_its_due_time(
        self, store: Store, put: Callable[..., Put], topic: int, kind: str
    ) -> None:
        made = [make(store, put(name, due=NOW + 5)) for name in ("a", "b")]
        rows = [lease(store, one, "c-1", NOW + 15) for one in made]

        make(store, owners_change(kind, topic, "a", "shop", 0), now=NOW + 4)

        late = owners_change(kind, topic, "b", "shop", 0)
        assert refused(store, late, now=NOW + 5) is MessageLeasedError
        assert store.held(topic, "c-1", behind(NOW + 5), 999) == [rows[1]]
        if kind != "delete":
            row = store.get(topic, "a")
            assert row is not None
            assert (row.holder, row.position_ms, row.leases) == ("", row.due_ms, 0)
            assert row.due_ms == (NOW + 5 if kind == "update" else 7)
        done = Done(topic, "a", "c-1", rows[0].version)
        lost = MessageNotFoundError if kind == "delete" else TimelineLeaseLostError
        assert refused(store, done, now=NOW + 6) is lost

    def test_a_change_of_a_lost_message_frees_it_and_its_lease_counts(
        self, store: Store, put: Callable[..., Put], topic: int
    ) -> None:
        lease(store, make(store, put("a", due=NOW)), "c-1", NOW + 10)

        make(store, Update(topic, "a", "shop", b"new"), now=NOW + 10)

        row = store.get(topic, "a")
        assert row is not None
        assert (row.holder, row.due_ms, row.position_ms, row.leases) == ("", NOW, NOW, 1)

    # Work

    def test_work_is_made_in_its_order_each_change_seeing_the_one_before(
        self, store: Store, put: Callable[..., Put], topic: int
    ) -> None:
        outcomes = store.apply(
            NOW,
            [
                Work([put("a"), Move(topic, "a", "shop", 5), put("a")]),
                Work([Delete(topic, "a", "shop"), put("a", due=6)], atomic=True),
                Work([put("b", due=1), Delete(topic, "b", "shop")]),
                Work([]),
            ],
        )

        kinds = [[type(o) for o in found] for found in outcomes if isinstance(found, list)]
        assert kinds == [
            [Changed, Changed, MessageExistsError],
            [Changed, Changed],
            [Changed, Changed],
            [],
        ]
        assert [(row.id, row.due_ms) for row in everything(store, topic)] == [("a", 6)]

    def test_atomic_work_is_made_whole_or_not_at_all(
        self, store: Store, put: Callable[..., Put], topic: int
    ) -> None:
        letters = store.create_topic("/default/letters", "timeline", b"").number
        made = [make(store, put(name, due=NOW)) for name in "abcd"]
        row = lease(store, made[3], "c-1", NOW + 10)
        before = everything(store, topic)
        changes: list[Change] = [
            put("new"),
            Move(topic, "a", "shop", NOW + 7),
            Update(topic, "a", "shop", b"other"),
            Delete(topic, "b", "shop"),
            put("b", due=3),
            Bury(topic, made[2].seq, made[2].version, letters),
            Extend(topic, "d", "c-1", row.version, NOW + 99),
        ]
        refusal = Delete(topic, "nobody", "shop")

        first, second, third = store.apply(
            NOW,
            [
                Work([*changes, refusal], atomic=True),
                Work([put("e", due=NOW + 1)]),
                Work([refusal, put("f")], atomic=True),
            ],
        )

        assert isinstance(first, MessageNotFoundError)
        assert isinstance(second, list)
        assert isinstance(third, MessageNotFoundError)
        kept = [one for one in everything(store, topic) if one.id != "e"]
        assert kept == before
        assert everything(store, letters) == []
        (made_whole,) = store.apply(NOW, [Work(changes, atomic=True)])
        assert isinstance(made_whole, list)
        assert [type(outcome) for outcome in made_whole] == [Changed] * len(changes)
        assert sorted(ids(everything(store, topic))) == ["a", "b", "d", "e", "new"]
        assert ids(everything(store, letters)) == ["c"]

    def test_a_message_that_was_leased_in_the_same_work_is_whole(
        self, store: Store, put: Callable[..., Put], topic: int
    ) -> None:
        made = make(store, put("a", due=NOW))
        moved, leased = apply(
            store,
            Update(topic, "a", "shop", b"other"),
            Lease(topic, made.seq, made.version, "c-1", NOW + 10),
        )
        assert isinstance(moved, Changed)
        assert isinstance(leased, MessageChangedError)

        row = lease(store, moved, "c-1", NOW + 10)

        assert row.payload == b"other"
        assert row == store.get(topic, "a")

    def test_no_version_comes_again_after_deleting_and_reopening(
        self, store: Store, put: Callable[..., Put], topic: int, open_store: Open
    ) -> None:
        versions = [make(store, put("a")).version, make(store, Delete(topic, "a", "shop")).version]
        store.close()
        again = open_store()
        versions.append(make(again, put("a")).version)
        again.delete_topic(topic)
        again.close()
        last = open_store()
        other = last.create_topic("/default/other", "timeline", b"").number
        versions.append(make(last, Put(other, "a", "shop", NOW, b"")).version)
        last.close()

        assert versions == sorted(set(versions))

    def test_a_store_that_was_closed_opens_anew(
        self, store: Store, put: Callable[..., Put], topic: int
    ) -> None:
        make(store, put("a"))
        store.close()
        store.close()

        assert ids(everything(store, topic)) == ["a"]

    # Reading

    def test_a_scan_goes_by_position_and_then_by_age(
        self, store: Store, put: Callable[..., Put], topic: int
    ) -> None:
        made = {
            name: make(store, put(name, due=due, level=level))
            for name, due, level in [
                ("a", 7, 0),
                ("b", 5, 0),
                ("c", 5, 0),
                ("d", 1, 1),
                ("e", 9, 0),
            ]
        }
        row = lease(store, made["b"], "c-1", NOW + 5)

        def scan(after: tuple[int, int], until: int, limit: int = 10) -> list[int]:
            return [slot.seq for slot in store.scan(topic, 0, after, until, limit)]

        a, b, c, d, e = (made[name].seq for name in "abcde")
        assert scan(START, END) == [c, a, e, b]
        assert scan(START, 9) == [c, a, e]
        assert scan(START, 8) == [c, a]
        assert scan((5, c - 1), 9) == [c, a, e]
        assert scan((5, c), 9) == [a, e]
        assert scan((6, 0), 9, limit=1) == [a]
        assert scan(START, END, limit=0) == []
        assert [slot.seq for slot in store.scan(topic, 1, START, END, 10)] == [d]
        assert store.scan(topic, 2, START, END, 10) == []
        assert store.scan(topic, 0, (9, e), END, 10) == [
            Slot(NOW + 5, b, row.version, 5, held=True)
        ]

    def test_levels_are_told_with_their_first_positions(
        self, store: Store, put: Callable[..., Put], topic: int
    ) -> None:
        assert store.levels(topic) == {}
        for name, due, level in [("a", 7, 31), ("b", 5, 31), ("c", 9, 0), ("d", 1, 4)]:
            make(store, put(name, due=due, level=level))
        make(store, Delete(topic, "d", "shop"))

        assert store.levels(topic) == {0: 9, 31: 5}

    def test_pages_go_over_all_levels_by_position_and_then_by_age(
        self, store: Store, put: Callable[..., Put], topic: int
    ) -> None:
        for number in range(50):
            make(store, put(f"m{number}", due=number % 7, level=number % 3))
        expected = sorted(range(50), key=lambda number: (number % 7, number))
        names = [f"m{number}" for number in expected]

        found: list[str] = []
        after = START
        while page := store.page(topic, START[0], END, after, 6):
            assert len(page) <= 6
            found += ids(page)
            after = (page[-1].position_ms, page[-1].seq)
        assert found == names
        some = [f"m{number}" for number in expected if 2 <= number % 7 < 5]
        assert ids(store.page(topic, 2, 5, START, 100)) == some
        assert store.page(topic, 5, 2, START, 100) == []

    def test_messages_are_counted_from_the_start_up_to_before_the_end(
        self, store: Store, put: Callable[..., Put], topic: int
    ) -> None:
        for number in range(10):
            make(store, put(f"m{number}", due=number, level=number % 2))

        assert store.count(topic, START[0], END) == 10
        assert store.count(topic, 3, 7) == 4
        assert store.count(topic, 7, 3) == 0
        assert store.count(topic + 1, START[0], END) == 0

    def test_much_work_at_once_has_an_outcome_for_each_change(
        self, store: Store, put: Callable[..., Put], topic: int
    ) -> None:
        outcomes = apply(store, *(put(f"m{number:04}", due=NOW) for number in range(3_000)))
        changed = [outcome for outcome in outcomes if isinstance(outcome, Changed)]
        assert [one.id for one in changed] == [f"m{number:04}" for number in range(3_000)]
        assert len({one.version for one in changed}) == 3_000

        rows = apply(
            store, *(Lease(topic, one.seq, one.version, "c-1", NOW + 10) for one in changed)
        )
        assert [row.id for row in rows if isinstance(row, Row)] == [one.id for one in changed]
        done = [Done(topic, row.id, "c-1", row.version) for row in rows if isinstance(row, Row)]
        half = apply(store, *done[::2])
        assert [one.id for one in half if isinstance(one, Changed)] == [d.id for d in done[::2]]
        assert ids(everything(store, topic)) == [one.id for one in done[1::2]]
