"""Waiting for several things at once."""

from ister.base.errors import BadRequestError, IsterError
from ister.broker.scheduling.completion import Latch, after_all


def test_all_have_ended_after_the_last_one_and_the_first_error_counts() -> None:
    answers: list[IsterError | None] = []
    first, second = BadRequestError("first"), BadRequestError("second")
    each = after_all(3, answers.append)

    each(None)
    each(first)
    assert not answers
    each(second)
    assert answers == [first]


def test_nothing_to_wait_for_ends_at_once() -> None:
    answers: list[IsterError | None] = []
    after_all(0, answers.append)

    assert answers == [None]


def test_a_latch_waits_for_parts_that_are_added_later() -> None:
    answers: list[IsterError | None] = []
    latch = Latch(answers.append)

    latch.add()(None)
    last = latch.add()
    latch.close()
    assert not answers
    last(None)
    assert answers == [None]


def test_closing_a_latch_with_an_error_is_the_answer() -> None:
    answers: list[IsterError | None] = []
    latch = Latch(answers.append)
    part, error = latch.add(), BadRequestError("gone")

    latch.close(error)
    part(None)

    assert answers == [error]
