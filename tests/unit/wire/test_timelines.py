"""Columns of timeline commands are checked before anybody relies on them."""

import pytest

from ister.base.errors import MessageChangedError, ProtocolError
from ister.base.limits import TIMELINE_CHANGES_MAX
from ister.wire import (
    DONE,
    FINISH_KINDS_END,
    RELEASE,
    Refusal,
    TimelineChanged,
    TimelineDue,
    check_due,
    check_kinds,
    column,
    outcomes_of,
    refusal,
)


def test_a_column_that_is_left_out_has_its_default_for_every_message() -> None:
    assert column([], 3, 0) == [0, 0, 0]
    assert column([1, 2], 2, 0) == [1, 2]


def test_a_column_of_another_length_is_refused() -> None:
    with pytest.raises(ProtocolError, match="2 values for 3"):
        column([1, 2], 3, 0)


def test_kinds_have_to_be_known_and_as_many_as_ids() -> None:
    check_kinds(bytes([DONE, RELEASE]), ["a", "b"], FINISH_KINDS_END)

    for kinds, ids in ((bytes([FINISH_KINDS_END]), ["a"]), (b"\0", ["a", "b"]), (b"", [])):
        with pytest.raises(ProtocolError):
            check_kinds(kinds, ids, FINISH_KINDS_END)


def test_a_command_has_no_more_changes_than_the_limit() -> None:
    most = TIMELINE_CHANGES_MAX
    check_kinds(bytes(most), ["a"] * most, FINISH_KINDS_END)

    with pytest.raises(ProtocolError, match="changes"):
        check_kinds(bytes(most + 1), ["a"] * (most + 1), FINISH_KINDS_END)


def test_a_delivery_with_columns_of_different_lengths_is_refused() -> None:
    due = TimelineDue(
        ids=["a", "b"], versions=[1], due_ms=[0, 0], until_ms=[0, 0], attempts=[1, 1], payloads=[]
    )

    with pytest.raises(ProtocolError, match="differ"):
        check_due(due)


def test_an_error_of_a_change_survives_its_way_over_the_wire() -> None:
    reply = TimelineChanged(versions=[5, 0], errors={1: refusal(MessageChangedError("r-1", 8))})

    version, error = outcomes_of(reply, 2)

    assert version == 5
    assert isinstance(error, MessageChangedError)
    assert (error.id, error.version) == ("r-1", 8)


def test_outcomes_for_changes_that_nobody_made_are_refused() -> None:
    with pytest.raises(ProtocolError):
        outcomes_of(TimelineChanged(versions=[1]), 2)
    with pytest.raises(ProtocolError):
        outcomes_of(TimelineChanged(versions=[1], errors={1: Refusal(code=1, fields={})}), 1)
