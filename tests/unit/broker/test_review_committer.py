"""Group commit: everybody is told, whatever one of them does with it."""

import pytest
from tests.unit.broker.test_committer import Bench

from ister.base.errors import IsterError


def fail(error: IsterError | None) -> None:
    raise AssertionError("a bug of somebody")


@pytest.mark.parametrize(("broken", "told"), [(False, ["a"]), (True, ["!a"])])
def test_who_fails_on_what_it_is_told_does_not_keep_it_from_the_others(
    broken: bool, told: list[str]
) -> None:
    bench = Bench()
    bench.log.error = OSError("no") if broken else None
    bench.committer.add(fail)
    bench.append("a")
    bench.turn()
    while bench.jobs:
        bench.work()

    assert bench.told == told
    assert bench.committer.resting
