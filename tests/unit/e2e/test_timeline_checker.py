"""The judge of the storms of timelines: it finds every fault that is planted, and no other."""

from collections.abc import Callable
from pathlib import Path

import pytest
from tests.e2e.timeline.timeline_checker import Fault, check
from tests.e2e.timeline.timeline_history import (
    DELETE,
    DONE,
    EXTEND,
    MOVE,
    RELEASE,
    UPDATE,
    Act,
    Change,
    Finish,
    Handover,
    read_history,
)
from tests.unit.e2e.timeline_cases import Case, done, finish, putting

CHANGED = "MessageChangedError"


@pytest.fixture
def case() -> Case:
    """A message that is put for 100 with version 1."""
    case = Case()
    case.put(0, 100, 1)
    return case


# What is fine


def put_and_done(case: Case) -> None:
    case.hand(100, 2, done(110))


def moved(case: Case) -> None:
    case.move(10, 300, 2)
    case.hand(300, 3, done(310), due_ms=300)


def moved_maybe_and_fired_at_the_old_time(case: Case) -> None:
    case.move(10, 300, None)
    case.hand(100, 3, done(110))


def moved_maybe_and_fired_at_the_new_time(case: Case) -> None:
    case.move(10, 300, None)
    case.hand(300, 3, done(310), due_ms=300)


def deleted(case: Case) -> None:
    case.delete(10)


def deleted_maybe_and_never_fired(case: Case) -> None:
    case.delete(10, None)


def deleted_maybe_and_fired(case: Case) -> None:
    case.delete(10, None)
    case.hand(100, 3, done(110))


def put_maybe_and_never_fired(case: Case) -> None:
    case.history.acts.clear()
    case.act(0, putting(100))


def lost_by_one_and_done_by_another_after_the_lease(case: Case) -> None:
    case.hand(100, 2, consumer="dead")
    case.hand(1_100, 3, done(1_110))


def handed_back_to_who_had_it(case: Case) -> None:
    case.hand(100, 2, process="first")
    case.hand(200, 2, done(210), process="second")


def handed_back_to_who_had_it_and_released(case: Case) -> None:
    case.hand(100, 2, finish(EXTEND, 110, time_ms=2_000), process="first")
    released = finish(RELEASE, 210, time_ms=400)
    case.hand(200, 3, released, process="second")
    case.hand(400, 5, done(410), due_ms=400, consumer="other")


def released_and_fired_then(case: Case) -> None:
    case.hand(100, 2, finish(RELEASE, 110, time_ms=400))
    case.hand(400, 4, done(410), due_ms=400, consumer="other")


def extended_and_done_after_the_first_end(case: Case) -> None:
    case.hand(100, 2, finish(EXTEND, 900, time_ms=2_000), done(2_000))


def refused_because_the_lease_was_lost(case: Case) -> None:
    case.hand(100, 2, done(1_500, "TimelineLeaseLostError"))
    case.hand(1_200, 3, done(1_210), consumer="other")


def put_again_after_it_was_deleted(case: Case) -> None:
    case.delete(10)
    case.act(20, putting(300, number=2), answers=[5])
    case.hand(300, 6, done(310), due_ms=300, payload="a/2/0")


def put_again_by_one_who_was_killed_while_its_end_was_not_told(case: Case) -> None:
    case.hand(100, 2, done(110, "TimelineLeaseLostError"))
    case.act(120, putting(300, number=2))
    case.hand(300, 6, done(310), due_ms=300, payload="a/2/0")


def a_replaced_process_that_hears_of_it_late(case: Case) -> None:
    case.hand(100, 2, done(110), process="second", since_ms=50)
    case.hand(111, 2, process="first")


def a_transaction_that_nobody_knows_of_and_was_made(case: Case) -> None:
    case.act(10, putting(200, "b"), Change(MOVE, "a", 1, "a/1/0", 300), atomic=True)
    case.hand(200, 5, done(210), due_ms=200, payload="b/1/0")
    case.hand(300, 6, done(310), due_ms=300)


def a_transaction_that_nobody_knows_of_and_was_not_made(case: Case) -> None:
    case.act(10, putting(200, "b"), Change(MOVE, "a", 1, "a/1/0", 300), atomic=True)
    case.hand(100, 6, done(110))


def noted_a_little_after_the_end_of_the_lease(case: Case) -> None:
    case.hand(199, 2, consumer="first").until_ms = 100
    case.hand(300, 3, done(310))


def leased_by_one_who_was_killed_before_noting_it(case: Case) -> None:
    case.hand(600, 3, done(610), attempt=2)


def leased_too_often_and_buried(case: Case) -> None:
    case.hand(100, 2, consumer="dead")
    case.bury(1_100, 5, done(1_110))


def buried_though_nobody_has_noted_a_lease(case: Case) -> None:
    case.bury(600, 5, done(610))


def buried_and_lost_by_an_undertaker(case: Case) -> None:
    case.hand(100, 2, finish(RELEASE, 110, time_ms=300))
    case.bury(200, 5)
    case.bury(2_100, 6, done(2_110), due_ms=200).attempt = 3


def buried_and_released_by_an_undertaker(case: Case) -> None:
    case.hand(100, 2, finish(RELEASE, 110, time_ms=300))
    case.bury(200, 5, finish(RELEASE, 210, time_ms=400))
    case.bury(400, 6, done(410)).attempt = 3


def buried_and_put_again(case: Case) -> None:
    case.hand(100, 2, finish(RELEASE, 110, time_ms=300))
    case.act(250, putting(400, number=2), answers=[6])
    case.bury(300, 8, done(310), due_ms=200)
    case.hand(400, 9, finish(RELEASE, 410, time_ms=600), due_ms=400, payload="a/2/0")
    second = case.hand(500, 12, done(510), due_ms=500, payload="a/2/0", consumer="u", letter=True)
    second.id = "a-11"


def buried_after_a_move_in_a_transaction_that_nobody_knows_of(case: Case) -> None:
    case.hand(100, 2, finish(RELEASE, 110, time_ms=300))
    case.act(120, putting(200, "b"), Change(MOVE, "a", 1, "a/1/0", 250), atomic=True)
    case.hand(200, 6, done(210), due_ms=200, payload="b/1/0")
    case.bury(220, 8, done(230))


def of_a_priority(case: Case) -> None:
    case.act(10, putting(100, "b")._replace(priority=7), answers=[2])
    case.hand(100, 3, done(110))
    case.hand(100, 4, done(110), payload="b/1/0").priority = 7


FINE = [
    leased_by_one_who_was_killed_before_noting_it,
    leased_too_often_and_buried,
    buried_though_nobody_has_noted_a_lease,
    buried_and_lost_by_an_undertaker,
    buried_and_released_by_an_undertaker,
    buried_and_put_again,
    buried_after_a_move_in_a_transaction_that_nobody_knows_of,
    of_a_priority,
    put_and_done,
    noted_a_little_after_the_end_of_the_lease,
    moved,
    moved_maybe_and_fired_at_the_old_time,
    moved_maybe_and_fired_at_the_new_time,
    deleted,
    deleted_maybe_and_never_fired,
    deleted_maybe_and_fired,
    put_maybe_and_never_fired,
    lost_by_one_and_done_by_another_after_the_lease,
    put_again_by_one_who_was_killed_while_its_end_was_not_told,
    handed_back_to_who_had_it,
    handed_back_to_who_had_it_and_released,
    released_and_fired_then,
    extended_and_done_after_the_first_end,
    refused_because_the_lease_was_lost,
    put_again_after_it_was_deleted,
    a_replaced_process_that_hears_of_it_late,
    a_transaction_that_nobody_knows_of_and_was_made,
    a_transaction_that_nobody_knows_of_and_was_not_made,
]


@pytest.mark.parametrize("tell", FINE, ids=lambda tell: tell.__name__)
def test_a_history_without_faults_is_fine(tell: Callable[[Case], None], case: Case) -> None:
    tell(case)

    assert check(case.history) == []


# One fault each


def fire_a_microsecond_early(case: Case) -> None:
    case.hand(100, 2, done(110)).at_us -= 1


def fire_after_a_delete(case: Case) -> None:
    case.delete(10)
    case.hand(100, 3, done(110))


def fire_after_its_id_was_put_again(case: Case) -> None:
    case.act(10, putting(300, number=2), answers=[5])
    case.hand(100, 2, done(110))
    case.hand(300, 6, done(310), due_ms=300, payload="a/2/0")


def fire_at_the_old_time_after_a_move(case: Case) -> None:
    case.move(10, 300, 3)
    case.hand(100, 2)
    case.hand(300, 4, done(310), due_ms=300)


def fire_with_another_time_than_it_was_moved_to(case: Case) -> None:
    case.move(10, 300, 2)
    case.hand(301, 3, done(310), due_ms=301)


def fire_with_the_time_of_a_move_that_was_refused(case: Case) -> None:
    case.move(10, 300, CHANGED)
    case.hand(300, 3, done(310), due_ms=300)


def fire_with_the_payload_before_an_update(case: Case) -> None:
    case.act(10, Change(UPDATE, "a", 1, "a/1/1", 0), answers=[2])
    case.hand(100, 3, done(110))


def fire_what_nobody_put(case: Case) -> None:
    case.hand(100, 2, done(110))
    case.hand(100, 3, done(110), payload="z/1/0")


def fire_what_was_refused(case: Case) -> None:
    case.hand(100, 2, done(110))
    case.put(10, 100, "MessageExistsError", "b")
    case.hand(100, 3, done(110), payload="b/1/0")


def never_fire(case: Case) -> None:
    pass


def never_fire_after_a_move(case: Case) -> None:
    case.hand(100, 2, finish(RELEASE, 110, time_ms=400))
    case.move(200, 300, 4)


def never_fire_after_a_delete_that_was_refused(case: Case) -> None:
    case.delete(10, CHANGED)


def forget_what_its_holder_lost(case: Case) -> None:
    case.hand(100, 2)


def fire_again_after_done(case: Case) -> None:
    case.hand(100, 2, done(110))
    case.hand(1_200, 3)


def share_a_lease(case: Case) -> None:
    case.hand(100, 2)
    case.hand(1_099, 3, done(1_110), consumer="other")


def share_a_lease_that_was_extended(case: Case) -> None:
    case.hand(100, 2, finish(EXTEND, 900, time_ms=2_000))
    case.hand(2_000, 4, done(2_010), consumer="other")


def fire_after_the_end_of_the_lease(case: Case) -> None:
    case.hand(200, 2, done(210), consumer="first").until_ms = 100
    case.hand(300, 3, done(310))


def finish_after_the_end_of_the_lease(case: Case) -> None:
    case.hand(100, 2, done(1_100))


def finish_what_is_anothers(case: Case) -> None:
    case.hand(100, 2, finish(EXTEND, 150, None, time_ms=90), done(500))
    case.hand(300, 3, consumer="other")


def claim_what_another_has_finished(case: Case) -> None:
    case.hand(100, 2, done(1_500))
    case.hand(1_200, 3, done(1_210), consumer="other")


def claim_what_its_owner_has_deleted(case: Case) -> None:
    case.hand(100, 2, done(1_500))
    case.delete(1_300)


def change_what_is_leased(case: Case) -> None:
    case.hand(100, 2)
    case.move(200, 300, 3)
    case.hand(1_200, 4, done(1_210), due_ms=300)


def change_at_an_old_version(case: Case) -> None:
    case.move(10, 300, 2)
    case.delete(20, wanted=1)


def change_at_a_version_from_before_a_lease(case: Case) -> None:
    case.hand(100, 2, finish(RELEASE, 110, time_ms=400))
    case.delete(200, wanted=1)


def make_half_a_transaction(case: Case) -> None:
    case.act(10, putting(200, "b"), Change(MOVE, "a", 1, "a/1/0", 300), atomic=True)
    case.hand(100, 5, done(110))
    case.hand(200, 6, done(210), due_ms=200, payload="b/1/0")


def make_the_deletion_of_a_transaction_alone(case: Case) -> None:
    case.act(10, putting(200, "b"), Change(DELETE, "a", 1, "a/1/0", 0), atomic=True)


def give_a_version_twice(case: Case) -> None:
    case.put(10, 100, 1, "b")
    case.hand(100, 2, done(110))
    case.hand(100, 3, done(110), payload="b/1/0")


def hand_over_once_too_often(case: Case) -> None:
    case.history.max_leases = 1
    case.hand(100, 2)
    case.hand(1_100, 3, done(1_110), consumer="other")


def bury_what_was_leased_less_often(case: Case) -> None:
    case.hand(100, 2, finish(RELEASE, 110, time_ms=300))
    case.bury(300, 4, done(310))
    case.history.max_leases = 2


def bury_without_dead_letters(case: Case) -> None:
    case.hand(100, 2, finish(RELEASE, 110, time_ms=300))
    case.bury(300, 4, done(310))
    case.history.max_leases = 0


def count_leases_that_there_was_no_time_for(case: Case) -> None:
    case.hand(499, 3, done(510), attempt=2)


def count_an_extension(case: Case) -> None:
    case.hand(100, 2, finish(EXTEND, 110, time_ms=2_000), consumer="dead")
    case.hand(2_500, 4, done(2_510), attempt=3)


def count_a_lease_twice(case: Case) -> None:
    case.hand(100, 2, finish(RELEASE, 110, time_ms=300))
    case.bury(300, 4, done(310)).attempt = 3


def count_a_lease_not(case: Case) -> None:
    case.hand(100, 2, finish(RELEASE, 110, time_ms=300))
    case.hand(300, 4, done(310), due_ms=300, consumer="other", attempt=1)


def bury_what_is_leased(case: Case) -> None:
    case.hand(100, 2)
    case.bury(1_200, 5, done(1_210), due_ms=1_098)


def bury_and_forget(case: Case) -> None:
    case.history.max_leases = 1
    case.hand(100, 2, done(1_500, "MessageNotFoundError"))


def bury_and_forget_what_was_put_again(case: Case) -> None:
    case.history.max_leases = 1
    case.hand(100, 2)
    case.act(1_200, putting(1_300, number=2), answers=[6])
    case.hand(1_300, 7, done(1_310), due_ms=1_300, payload="a/2/0")


def lose_a_letter(case: Case) -> None:
    case.hand(100, 2)
    case.bury(1_100, 5)


def bury_what_is_done(case: Case) -> None:
    case.hand(100, 2, done(110))
    case.bury(1_100, 5)


def bury_what_is_deleted(case: Case) -> None:
    case.hand(100, 2, finish(RELEASE, 110, time_ms=300))
    case.delete(200)
    case.bury(300, 5)


def bury_after_its_id_was_put_again(case: Case) -> None:
    case.hand(100, 2, finish(RELEASE, 110, time_ms=300))
    case.act(200, putting(400, number=2), answers=[3])
    case.bury(300, 5, done(310))
    case.hand(400, 6, done(410), due_ms=400, payload="a/2/0")


def bury_with_the_payload_before_an_update(case: Case) -> None:
    case.hand(100, 2, finish(RELEASE, 110, time_ms=300))
    case.act(200, Change(UPDATE, "a", 1, "a/1/1", 0), answers=[4])
    case.bury(300, 5, done(310))


def bury_under_another_id(case: Case) -> None:
    case.hand(100, 2)
    case.bury(1_100, 5, done(1_110)).id = "a-4"


def bury_for_another_time(case: Case) -> None:
    case.hand(100, 2, finish(RELEASE, 110, time_ms=300))
    case.bury(200, 5)
    case.bury(1_300, 6, done(1_310)).attempt = 3


def leave_a_copy_behind(case: Case) -> None:
    case.hand(100, 2, finish(RELEASE, 110, time_ms=300))
    case.bury(200, 5)
    case.hand(1_300, 6, done(1_310), due_ms=300)


def change_a_letter(case: Case) -> None:
    case.hand(100, 2, finish(RELEASE, 110, time_ms=300))
    case.bury(200, 5)
    case.act(1_200, Change(UPDATE, "a", 1, "a/1/1", 0), answers=[6])
    case.hand(
        1_300, 7, done(1_310), due_ms=200, consumer="u", payload="a/1/1", attempt=3, letter=True
    )


def lose_a_priority(case: Case) -> None:
    case.act(10, putting(100, "b")._replace(priority=7), answers=[2])
    case.hand(100, 3, done(110))
    case.hand(100, 4, done(110), payload="b/1/0")


PLANTED: list[tuple[Callable[[Case], None], Fault]] = [
    (fire_a_microsecond_early, Fault.EARLY),
    (fire_after_a_delete, Fault.CANCELLED),
    (fire_after_its_id_was_put_again, Fault.CANCELLED),
    (fire_at_the_old_time_after_a_move, Fault.OUTDATED),
    (fire_with_another_time_than_it_was_moved_to, Fault.WRONG),
    (fire_with_the_time_of_a_move_that_was_refused, Fault.WRONG),
    (fire_with_the_payload_before_an_update, Fault.WRONG),
    (fire_what_nobody_put, Fault.UNEXPECTED),
    (fire_what_was_refused, Fault.UNEXPECTED),
    (never_fire, Fault.LOST),
    (never_fire_after_a_move, Fault.LOST),
    (never_fire_after_a_delete_that_was_refused, Fault.LOST),
    (forget_what_its_holder_lost, Fault.LOST),
    (fire_again_after_done, Fault.AGAIN),
    (share_a_lease, Fault.SHARED),
    (share_a_lease_that_was_extended, Fault.SHARED),
    (fire_after_the_end_of_the_lease, Fault.EXPIRED),
    (finish_after_the_end_of_the_lease, Fault.STALE),
    (finish_what_is_anothers, Fault.STALE),
    (claim_what_another_has_finished, Fault.CLAIMED),
    (claim_what_its_owner_has_deleted, Fault.CLAIMED),
    (change_what_is_leased, Fault.TAKEN),
    (change_at_an_old_version, Fault.UNCONDITIONAL),
    (change_at_a_version_from_before_a_lease, Fault.UNCONDITIONAL),
    (make_half_a_transaction, Fault.TORN),
    (make_the_deletion_of_a_transaction_alone, Fault.TORN),
    (give_a_version_twice, Fault.REUSED),
    (hand_over_once_too_often, Fault.WORN),
    (bury_what_was_leased_less_often, Fault.MISCOUNTED),
    (bury_without_dead_letters, Fault.MISCOUNTED),
    (count_leases_that_there_was_no_time_for, Fault.MISCOUNTED),
    (count_an_extension, Fault.MISCOUNTED),
    (count_a_lease_twice, Fault.MISCOUNTED),
    (count_a_lease_not, Fault.MISCOUNTED),
    (bury_what_is_leased, Fault.SHARED),
    (bury_and_forget, Fault.LOST),
    (bury_and_forget_what_was_put_again, Fault.LOST),
    (lose_a_letter, Fault.LOST),
    (bury_what_is_done, Fault.AGAIN),
    (bury_what_is_deleted, Fault.CANCELLED),
    (bury_after_its_id_was_put_again, Fault.CANCELLED),
    (bury_with_the_payload_before_an_update, Fault.WRONG),
    (bury_under_another_id, Fault.WRONG),
    (bury_for_another_time, Fault.WRONG),
    (leave_a_copy_behind, Fault.RISEN),
    (change_a_letter, Fault.RISEN),
    (lose_a_priority, Fault.WRONG),
]


@pytest.mark.parametrize(("plant", "fault"), PLANTED, ids=lambda one: getattr(one, "__name__", ""))
def test_a_planted_fault_is_found(plant: Callable[[Case], None], fault: Fault, case: Case) -> None:
    plant(case)

    assert case.faults == [fault]


def test_every_fault_is_planted() -> None:
    assert {fault for _, fault in PLANTED} == set(Fault)


# What processes have written


def test_lines_of_a_process_are_put_together_and_one_that_was_cut_is_left_out(
    tmp_path: Path,
) -> None:
    file = tmp_path / "p.log"
    file.write_text(
        '["begin", 5, "w", true]\n'
        '["act", 10, 1, false, [["put", "a", 1, "a/1/0", 100, 0], ["delete", "b", 1, "", 0, 7]]]\n'
        '["told", 20, 1, [3, null]]\n'
        '["handed", 30, 2, "a", 4, 100, 1100, "a/1/0", 3, 7]\n'
        '["finish", 40, 2, "done", 0]\n'
        '["finished", 50, 2, "done", ""]\n'
        '["act", 60, 3, false, [["pu'
    )

    history = read_history([file], max_leases=2)

    assert history.max_leases == 2

    [act] = history.acts
    assert act == Act(
        "p", 1, 10, False, [putting(100), Change(DELETE, "b", 1, "", 0, 7)], 20, [3, None]
    )
    [handover] = history.handovers
    assert handover == Handover(
        "p", 5, "w", 30, "a", 4, 100, 1100, "a/1/0", 3, 7, True, [Finish(DONE, 40, 0, 50, "")]
    )
