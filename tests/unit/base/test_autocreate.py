"""`--auto-create`: a word for all namespaces, and words for some."""

import pytest

from ister.base import AutoCreate


@pytest.mark.parametrize(
    ("text", "default", "shop"),
    [
        ("off", "off", "off"),
        ("stream", "stream", "stream"),
        ("shop=off", "live", "off"),
        ("off, shop = stream", "off", "stream"),
        ("a=off,live,shop=live", "live", "live"),
    ],
)
def test_a_namespace_has_its_word_or_that_of_all(text: str, default: str, shop: str) -> None:
    parsed = AutoCreate.parse(text)

    assert parsed.kind_of("elsewhere") == default
    assert parsed.kind_of("shop") == shop


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("on", "'on' is not one of off, live, stream"),
        ("", "'' is not one of"),
        ("shop=", "'' is not one of"),
        ("off,live", "two words"),
        ("a=off,a=live", "'a' twice"),
        ("a/b=off", "'a/b' is not the name of a namespace"),
        ("=off", "'' is not the name"),
    ],
)
def test_a_mistake_is_named(text: str, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        AutoCreate.parse(text)
