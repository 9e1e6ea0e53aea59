"""A broker, owners and consumers that are killed over and over: every promise of a timeline holds.

The seed decides who is killed next; when exactly that hits is chance. `TIMELINE_STORM_SEED=n` takes
another, and `TIMELINE_STORM_SECONDS=n` has the long storms of `make test-slow` rage for as long.
"""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
from tests.e2e.timeline.postgres_server import PostgresServer
from tests.e2e.timeline.timeline_history import DONE, History
from tests.e2e.timeline.timeline_storm import TimelineStorm

from ister.base.errors import MessageChangedError, TimelineLeaseLostError

# With this one all kinds of bad weather come within eight strokes.
SEED = int(os.environ.get("TIMELINE_STORM_SEED", "389"))
SHORT_S = 14.0
# For other kinds of topics: what is the same for all has had its storm then. With this seed a
# consumer, the database if there is one, and the broker are killed within three strokes.
BRIEF_SEED = int(os.environ.get("TIMELINE_STORM_SEED", "48056"))
BRIEF_S = 2.0
LONG_S = float(os.environ.get("TIMELINE_STORM_SECONDS", "180"))
DATABASE = "storm"

pytestmark = pytest.mark.e2e


class Kind(NamedTuple):
    """A topic, and where it is kept."""

    kind: str
    max_leases: int
    in_postgres: bool


KINDS = {
    "postgres": Kind("timeline", max_leases=2, in_postgres=True),
    "letters": Kind("timeline", max_leases=2, in_postgres=False),
    "priority": Kind("priority", max_leases=0, in_postgres=False),
}
LONG_KINDS = {
    "plain": Kind("timeline", max_leases=0, in_postgres=False),
    "all": Kind("priority", max_leases=2, in_postgres=True),
    **KINDS,
}


@pytest.fixture
def storm(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[TimelineStorm]:
    """A storm over a topic of some kind."""
    kind, max_leases, in_postgres = request.param
    if not in_postgres:
        yield TimelineStorm(tmp_path, BRIEF_SEED, kind=kind, max_leases=max_leases)
        return
    server: PostgresServer = request.getfixturevalue("server")
    server.execute(f"CREATE DATABASE {DATABASE}")
    yield TimelineStorm(
        tmp_path, BRIEF_SEED, kind=kind, max_leases=max_leases, server=server, database=DATABASE
    )
    server.execute(f"DROP DATABASE {DATABASE} WITH (FORCE)")


@pytest.mark.timeout(240)
async def test_a_timeline_keeps_its_promises_when_everybody_is_killed(tmp_path: Path) -> None:
    storm = TimelineStorm(tmp_path, SEED)

    history = await storm.run(SHORT_S)

    storm.judge(history)
    check_reach(storm, history, dones=50)
    answers = {answer for act in history.acts for answer in act.answers}
    assert MessageChangedError.__name__ in answers, storm


@pytest.mark.timeout(240)
@pytest.mark.parametrize("storm", KINDS.values(), ids=KINDS, indirect=True)
async def test_other_kinds_of_timelines_keep_the_same_promises(storm: TimelineStorm) -> None:
    history = await storm.run(BRIEF_S)

    storm.judge(history)
    check_reach(storm, history, dones=0)


@pytest.mark.slow
@pytest.mark.timeout(LONG_S + 300)
@pytest.mark.parametrize("storm", LONG_KINDS.values(), ids=LONG_KINDS, indirect=True)
async def test_a_timeline_keeps_its_promises_in_a_long_storm(storm: TimelineStorm) -> None:
    history = await storm.run(LONG_S)

    storm.judge(history)
    check_reach(storm, history, dones=50)
    # A consumer that was killed and came back under its name gets its messages under new leases.
    held = {(one.id, one.consumer) for one in history.handovers}
    assert len(history.handovers) > len(held), f"no consumer got a message again: {storm}"
    assert any(act.atomic and None in act.answers for act in history.acts), storm
    refused = {finish.answer for one in history.handovers for finish in one.finishes}
    assert TimelineLeaseLostError.__name__ in refused, storm


def check_reach(storm: TimelineStorm, history: History, *, dones: int) -> None:
    """See that the storm was one: what may go wrong was near, and more messages done than that."""
    finishes = [finish for one in history.handovers for finish in one.finishes]
    letters = {one.payload for one in history.handovers if one.letter}
    levels = {one.priority for one in history.handovers}

    # One of them is that at the end.
    assert storm.broker_kills > 1, storm
    assert storm.player_kills > 0, storm
    assert (storm.server_kills > 0) == storm.is_in_postgres, storm
    assert sum(finish.kind == DONE and finish.made for finish in finishes) > dones, storm
    assert bool(letters) == (storm.max_leases > 0), storm
    assert (len(levels) > 1) == (storm.kind == "priority"), storm
    assert "Traceback" not in storm.errors(), f"{storm}\n{storm.errors()}"
    assert "internal_error" not in storm.broker.log_text(), storm
