"""What every store of timelines must do about leases and dead letters."""

from collections.abc import Callable

import msgspec
import pytest
from tests.unit.timeline.acts import (
    END,
    NOW,
    START,
    Like,
    Open,
    StoreTests,
    apply,
    behind,
    everything,
    holders_change,
    ids,
    lease,
    make,
    refused,
)

from ister.base.errors import (
    MessageChangedError,
    MessageLeasedError,
    MessageNotFoundError,
    TimelineLeaseLostError,
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
    Put,
    Redrive,
    Release,
    Row,
    Slot,
    Store,
    Update,
    Work,
)


class LeasingContract(StoreTests):
    """Changes of consumers."""

    # Leases

    def test_a_lease_gives_the_whole_message_and_moves_it_to_the_lease_s_end(
        self, store: Store, put: Callable[..., Put], topic: int
    ) -> None:
        made = make(store, put("a", due=NOW - 7))
        free = store.get(topic, "a")
        assert free is not None

        row = lease(store, made, "c-1", NOW + 10)

        assert row == free._replace(
            version=row.version, holder="c-1", position_ms=NOW + 10, leases=1
        )
        assert row.version > made.version
        assert store.get(topic, "a") == row
        slot = Slot(NOW + 10, made.seq, row.version, NOW - 7, held=True)
        assert store.scan(topic, 0, START, END, 10) == [slot]

    def test_a_lease_is_of_one_consumer_at_a_time(
        self, store: Store, put: Callable[..., Put], topic: int
    ) -> None:
        made = make(store, put("a", due=NOW))
        first, second = apply(
            store,
            Lease(topic, made.seq, made.version, "c-1", NOW + 10),
            Lease(topic, made.seq, made.version, "c-2", NOW + 10),
        )

        assert isinstance(first, Row)
        assert isinstance(second, MessageChangedError)
        known = Lease(topic, made.seq, first.version, "c-2", NOW + 20)
        assert refused(store, known, now=NOW + 9) is MessageLeasedError
        own = known._replace(holder="c-1")
        assert refused(store, own, now=NOW + 9) is MessageLeasedError
        again = lease(store, first, "c-2", NOW + 20, now=NOW + 10)
        assert (again.holder, again.leases, again.position_ms) == ("c-2", 2, NOW + 20)

    def test_a_lease_of_what_is_not_there_is_refused(
        self, store: Store, put: Callable[..., Put], topic: int
    ) -> None:
        other = store.create_topic("/default/other", "timeline", b"").number
        made = make(store, put("a"))

        unknown = Lease(topic, made.seq + 1_000, made.version, "c-1", NOW)
        assert refused(store, unknown) is MessageNotFoundError
        elsewhere = Lease(other, made.seq, made.version, "c-1", NOW)
        assert refused(store, elsewhere) is MessageNotFoundError

    def test_what_is_prefetched_is_nobody_else_s(
        self, store: Store, put: Callable[..., Put], topic: int
    ) -> None:
        row = lease(store, make(store, put("a", due=NOW + 5)), "c-1", NOW + 15)

        again = Lease(topic, row.seq, row.version, "c-2", NOW + 30)
        assert refused(store, again) is MessageLeasedError
        assert refused(store, again, now=NOW + 14) is MessageLeasedError
        lease(store, row, "c-2", NOW + 30, now=NOW + 15)

    def test_a_lease_lasts_a_millisecond_from_the_due_time_at_least(
        self, store: Store, put: Callable[..., Put], topic: int
    ) -> None:
        row = lease(store, make(store, put("a", due=NOW + 5)), "c-1", NOW + 2)
        assert row.position_ms == NOW + 6

        longer = make(store, Extend(topic, "a", "c-1", row.version, NOW + 20))
        shorter = make(store, Extend(topic, "a", "c-1", longer.version, NOW + 1))

        assert (longer.position_ms, shorter.position_ms) == (NOW + 20, NOW + 6)

    def test_a_holder_extends_shortens_and_ends_a_lease(
        self, store: Store, put: Callable[..., Put], topic: int
    ) -> None:
        row = lease(store, make(store, put("a", due=NOW)), "c-1", NOW + 10)

        longer = make(store, Extend(topic, "a", "c-1", row.version, NOW + 50), now=NOW + 9)
        assert longer == Changed("a", longer.version, row.seq, NOW, NOW + 50)
        shorter = make(store, Extend(topic, "a", "c-1", longer.version, NOW + 20), now=NOW + 10)
        assert shorter.version > longer.version > row.version
        done = make(store, Done(topic, "a", "c-1", shorter.version), now=NOW + 19)
        assert done.version > shorter.version
        assert everything(store, topic) == []
        assert store.held(topic, "c-1", behind(NOW), 999) == []

    @pytest.mark.parametrize("unused", [False, True])
    def test_a_released_message_is_due_when_its_holder_says(
        self, store: Store, put: Callable[..., Put], topic: int, *, unused: bool
    ) -> None:
        row = lease(store, make(store, put("a", due=NOW)), "c-1", NOW + 10)

        release = Release(topic, "a", "c-1", row.version, NOW + 99, unused)
        given = make(store, release)

        assert given == Changed("a", given.version, row.seq, NOW + 99, NOW + 99)
        after = store.get(topic, "a")
        assert after is not None
        assert (after.holder, after.leases) == ("", 0 if unused else 1)
        assert refused(store, release) is TimelineLeaseLostError

    @pytest.mark.parametrize("kind", ["extend", "release", "done"])
    def test_a_holder_s_change_needs_the_lease(
        self, store: Store, put: Callable[..., Put], topic: int, kind: str
    ) -> None:
        def change(version: int, name: str = "a", holder: str = "c-1") -> Change:
            return holders_change(kind, topic, name, holder, version)

        made = make(store, put("a", due=NOW + 2))
        assert refused(store, change(made.version)) is TimelineLeaseLostError
        assert refused(store, change(made.version, holder="")) is TimelineLeaseLostError
        row = lease(store, made, "c-1", NOW + 10)

        assert refused(store, change(row.version, name="b")) is MessageNotFoundError
        assert refused(store, change(row.version, holder="c-2")) is TimelineLeaseLostError
        assert refused(store, change(made.version)) is TimelineLeaseLostError
        assert refused(store, change(0)) is TimelineLeaseLostError
        assert refused(store, change(row.version), now=NOW + 10) is TimelineLeaseLostError
        assert store.get(topic, "a") == row
        # Before the message is due, too: a prefetched one goes back.
        make(store, change(row.version))

    def test_a_lease_of_a_message_that_was_made_anew_is_lost(
        self, store: Store, put: Callable[..., Put], topic: int
    ) -> None:
        row = lease(store, make(store, put("a", due=NOW)), "c-1", NOW + 10)
        apply(store, Delete(topic, "a", "shop"), put("a", due=NOW), now=NOW + 10)

        assert refused(store, Done(topic, "a", "c-1", row.version)) is TimelineLeaseLostError
        again = Lease(topic, row.seq, row.version, "c-1", NOW + 99)
        assert refused(store, again, now=NOW + 10) is MessageNotFoundError

    def test_what_a_consumer_has_is_found_again_by_position(
        self, store: Store, put: Callable[..., Put], topic: int, open_store: Open
    ) -> None:
        made = [make(store, put(name, due=NOW + 5)) for name in "abcd"]
        lease(store, made[0], "c-1", NOW + 30)
        lease(store, made[1], "c-1", NOW + 20)
        lease(store, made[2], "c-2", NOW + 20)
        store.close()

        again = open_store()

        assert ids(again.held(topic, "c-1", behind(NOW), 999)) == ["b", "a"]
        assert ids(again.held(topic, "c-1", behind(NOW + 19), 999)) == ["b", "a"]
        assert ids(again.held(topic, "c-1", behind(NOW + 20), 999)) == ["a"]
        assert ids(again.held(topic, "c-2", behind(NOW), 999)) == ["c"]
        assert again.held(topic, "", behind(NOW), 999) == []
        assert again.held(topic + 1, "c-1", behind(NOW), 999) == []
        again.close()

    def test_what_a_consumer_has_is_found_a_page_at_a_time(
        self, store: Store, put: Callable[..., Put], topic: int
    ) -> None:
        for name in "abcde":
            lease(store, make(store, put(name, due=NOW)), "c-1", NOW + 10)

        first = store.held(topic, "c-1", behind(NOW), 3)
        rest = store.held(topic, "c-1", (first[-1].position_ms, first[-1].seq), 3)

        assert (ids(first), ids(rest)) == (["a", "b", "c"], ["d", "e"])

    # Clocks that are set back

    def test_a_lease_that_has_begun_is_alive_also_when_the_clock_is_behind_its_beginning(
        self, store: Store, put: Callable[..., Put], topic: int
    ) -> None:
        lease(store, make(store, put("a", due=NOW)), "c-1", NOW + 10)
        change = Delete(topic, "a", "shop")

        refusal = Like(MessageLeasedError("a", "c-1", NOW + 10))
        work = [Work([change], begun_ms=NOW), Work([change], atomic=True, begun_ms=NOW)]
        assert store.apply(NOW - 5, work) == [[refusal], refusal]

        (outcomes,) = store.apply(NOW - 5, [Work([change], begun_ms=NOW - 1)])
        assert isinstance(outcomes, list)
        assert isinstance(outcomes[0], Changed)

    # What was given back before it was due

    def test_a_message_given_back_unused_has_the_version_its_owner_knows(
        self, store: Store, put: Callable[..., Put], topic: int
    ) -> None:
        made = make(store, put("a", due=NOW + 50))
        before = store.get(topic, "a")
        row = lease(store, made, "c-1", NOW + 60)
        release = Release(topic, "a", "c-1", row.version, row.due_ms, True, made.version)

        assert make(store, release) == made

        assert store.get(topic, "a") == before
        assert refused(store, release) is TimelineLeaseLostError
        again = lease(store, made, "c-2", NOW + 60)
        assert again.version > row.version > made.version

    def test_a_message_that_was_used_or_put_off_has_a_new_version(
        self, store: Store, put: Callable[..., Put], topic: int
    ) -> None:
        for due_ms, unused in ((NOW, False), (NOW + 1, True)):
            made = make(store, put("a", due=NOW))
            row = lease(store, made, "c-1", NOW + 60)

            release = Release(topic, "a", "c-1", row.version, due_ms, unused, made.version)
            given = make(store, release)

            assert given.version > row.version
            make(store, Delete(topic, "a", "shop"))

    # Dead letters

    def test_a_dead_letter_has_no_level_where_there_are_none(
        self, store: Store, put: Callable[..., Put], topic: int
    ) -> None:
        letters = store.create_topic("/default/letters", "timeline", b"").number
        made = make(store, put("a", due=NOW, level=3))

        make(store, Bury(topic, made.seq, made.version, letters, flat=True))

        assert [row.level for row in everything(store, letters)] == [0]
        assert store.levels(letters) == {0: NOW}
        assert [slot.seq for slot in store.scan(letters, 0, START, END, 9)] == [made.seq]

    def test_a_buried_message_is_a_dead_letter_that_is_due_now(
        self, store: Store, put: Callable[..., Put], topic: int
    ) -> None:
        letters = store.create_topic("/default/letters", "timeline", b"").number
        row = lease(store, make(store, put("a", due=NOW, level=3)), "c-1", NOW + 10)
        bury = Bury(topic, row.seq, row.version, letters)
        assert refused(store, bury, now=NOW + 9) is MessageLeasedError

        buried = make(store, bury, now=NOW + 10)

        letter = store.get(letters, "a")
        assert letter is not None
        assert letter == row._replace(
            topic=letters,
            seq=buried.seq,
            version=buried.version,
            due_ms=NOW + 10,
            position_ms=NOW + 10,
            holder="",
        )
        assert everything(store, topic) == []
        assert store.levels(letters) == {3: NOW + 10}
        make(store, put("a"))

    def test_a_dead_letter_whose_id_is_taken_gets_its_version_behind_it(
        self, store: Store, put: Callable[..., Put], topic: int
    ) -> None:
        letters = store.create_topic("/default/letters", "timeline", b"").number
        made = make(store, put("a", due=NOW))
        make(store, Put(letters, "a", "other", NOW + 50, b"there before"))

        buried = make(store, Bury(topic, made.seq, made.version, letters))

        assert buried.id == f"a-{buried.version}"
        assert ids(everything(store, letters)) == [buried.id, "a"]

    def test_a_burial_needs_the_version_and_the_other_topic(
        self, store: Store, put: Callable[..., Put], topic: int
    ) -> None:
        letters = store.create_topic("/default/letters", "timeline", b"").number
        made = make(store, put("a", due=NOW))

        stale = Bury(topic, made.seq, made.version - 1, letters)
        assert refused(store, stale) is MessageChangedError
        nowhere = Bury(topic, made.seq, made.version, letters + 99)
        assert refused(store, nowhere) is TopicNotFoundError
        unknown = Bury(topic, made.seq + 99, made.version, letters)
        assert refused(store, unknown) is MessageNotFoundError
        assert ids(everything(store, topic)) == ["a"]

    def test_burials_in_a_row_find_the_ids_that_were_left(
        self, store: Store, put: Callable[..., Put], topic: int
    ) -> None:
        second = store.create_topic("/default/second", "timeline", b"").number
        third = store.create_topic("/default/third", "timeline", b"").number
        one = make(store, put("a", due=NOW))
        two = make(store, Put(second, "a", "shop", NOW, b"two"))

        outcomes = apply(
            store,
            Update(topic, "a", "shop", b"one", version=one.version),
            Bury(second, two.seq, two.version, third),
            Bury(topic, one.seq, one.version, second),
        )
        assert isinstance(outcomes[0], Changed)
        assert isinstance(outcomes[2], MessageChangedError)
        version = outcomes[0].version
        apply(
            store,
            Bury(topic, one.seq, version, second),
            Update(third, "a", "shop", b"two again"),
            put("a"),
        )

        found = [[row.payload for row in everything(store, t)] for t in (topic, second, third)]
        assert found == [[b"payload of a"], [b"one"], [b"two again"]]

    def test_a_holder_s_burial_needs_its_lease_and_says_why(
        self, store: Store, put: Callable[..., Put], topic: int
    ) -> None:
        letters = store.create_topic("/default/letters", "timeline", b"").number
        row = lease(store, make(store, put("a", due=NOW)), "c-1", NOW + 10)
        bury = Bury(topic, row.seq, row.version, letters, False, "c-1", "/default/jobs", "bad")

        assert refused(store, bury._replace(holder="c-2")) is TimelineLeaseLostError
        assert refused(store, bury._replace(version=row.version - 1)) is TimelineLeaseLostError
        assert refused(store, bury, now=NOW + 10) is TimelineLeaseLostError
        make(store, bury, now=NOW + 9)

        letter = store.get(letters, "a")
        assert letter is not None
        assert (letter.holder, letter.position_ms, letter.leases) == ("", NOW + 9, 1)
        assert msgspec.msgpack.decode(letter.attributes) == {
            "x-original-topic": "/default/jobs",
            "x-delivery-attempt": "1",
            "x-failure-reason": "bad",
        }

    def test_a_letter_goes_back_as_it_was_made(
        self, store: Store, put: Callable[..., Put], topic: int
    ) -> None:
        letters = store.create_topic("/default/letters", "timeline", b"").number
        before = put("a", due=NOW, level=3)._replace(attributes=msgspec.msgpack.encode({"a": "1"}))
        row = lease(store, make(store, before), "c-1", NOW + 10)
        bury = Bury(topic, row.seq, row.version, letters, False, "c-1", "/default/jobs", "bad")
        letter = make(store, bury)

        moved = make(store, Redrive(letters, letter.seq, letter.version, topic), now=NOW + 20)

        back = store.get(topic, "a")
        assert back is not None
        assert back == row._replace(
            version=moved.version, due_ms=NOW + 20, position_ms=NOW + 20, holder="", leases=0
        )
        assert everything(store, letters) == []
        again = Redrive(letters, letter.seq, letter.version, topic)
        assert refused(store, again) is MessageNotFoundError

    def test_a_letter_that_somebody_has_does_not_go_back(
        self, store: Store, put: Callable[..., Put], topic: int
    ) -> None:
        letters = store.create_topic("/default/letters", "timeline", b"").number
        made = make(store, put("a", due=NOW))
        letter = make(store, Bury(topic, made.seq, made.version, letters))
        [row] = apply(store, Lease(letters, letter.seq, letter.version, "c-1", NOW + 10))
        assert isinstance(row, Row)

        assert refused(store, Redrive(letters, row.seq, row.version, topic)) is MessageLeasedError
        assert refused(store, Redrive(letters, row.seq, 1, topic)) is MessageChangedError
