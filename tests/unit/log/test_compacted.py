"""How far a topic has been compacted, by its segments: kept forms, and holes between offsets."""

import pytest

from ister.log import Place, Span
from ister.log.files.segment import Form, Segment
from ister.log.index.compacted import Compacted, find_compacted

JOURNAL, SORTED, KEYED = Form.JOURNAL, Form.SORTED, Form.KEYED
OPEN_FIRST = 100
NEXT = 110


def span(first: int, end: int, form: Form) -> Span:
    return Span(Segment(first + 1, Place.LOCAL, form=form), first, end, 0, 0, 1)


@pytest.mark.parametrize(
    ("spans", "end_offset", "ends_in_hole"),
    [
        ([], OPEN_FIRST, True),
        ([(0, 100, JOURNAL)], 0, False),
        ([(0, 60, JOURNAL), (60, 100, SORTED)], 0, False),
        ([(0, 60, KEYED), (60, 100, JOURNAL)], 60, False),
        ([(7, 60, KEYED), (60, 100, JOURNAL)], 60, False),
        ([(0, 30, KEYED), (30, 60, KEYED), (60, 100, JOURNAL)], 60, False),
        # The last messages of what was compacted, or all of it, may be gone.
        ([(0, 50, KEYED), (60, 100, JOURNAL)], 60, True),
        ([(60, 100, JOURNAL)], 60, True),
        ([(0, 90, JOURNAL)], OPEN_FIRST, True),
        # Rewritten for another reason by a version that did not keep the form.
        ([(0, 50, SORTED), (60, 100, JOURNAL)], 60, True),
    ],
)
def test_a_topic_is_compacted_up_to_its_last_keyed_segment_or_hole(
    spans: list[tuple[int, int, Form]], end_offset: int, ends_in_hole: bool
) -> None:
    found = find_compacted([span(*one) for one in spans], 0, OPEN_FIRST, NEXT)

    assert found == Compacted(end_offset, ends_in_hole)


def test_what_retention_has_trimmed_is_no_hole() -> None:
    assert find_compacted([span(20, 100, JOURNAL)], 20, None, 100) == Compacted(0, False)
    assert find_compacted([span(20, 100, JOURNAL)], 30, None, 100) == Compacted(0, False)


def test_without_an_open_segment_the_end_of_the_topic_counts() -> None:
    assert find_compacted([span(0, 100, JOURNAL)], 0, None, 100) == Compacted(0, False)
    assert find_compacted([span(0, 90, JOURNAL)], 0, None, 100) == Compacted(100, True)
    assert find_compacted([], 5, None, 5) == Compacted(0, False)
