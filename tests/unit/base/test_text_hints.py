"""Hints at the word that was meant."""

import pytest

from ister.base import did_you_mean


@pytest.mark.parametrize(
    ("word", "hint"),
    [("prot", ", did you mean `port`?"), ("port", ", did you mean `port`?"), ("zzz", "")],
)
def test_the_nearest_known_word_is_hinted_at(word: str, hint: str) -> None:
    assert did_you_mean(word, ["host", "port"]) == hint
