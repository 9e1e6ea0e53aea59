"""The top-level modules: everything a user may name is there."""

import ister
from ister.base.errors import leaves


def test_every_error_can_be_caught_by_name() -> None:
    missing = [cls.__name__ for cls in leaves().values() if not hasattr(ister.errors, cls.__name__)]

    assert missing == []


def test_dir_shows_what_is_public_and_nothing_else() -> None:
    assert sorted(name for name in dir(ister) if not name.startswith("_")) == sorted(ister.__all__)
