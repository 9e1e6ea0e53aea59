"""A broker, owners and consumers that are killed over and over: every promise of a timeline holds.

The seed decides who is killed next; when exactly that hits is chance. `TIMELINE_STORM_SEED=n` takes
another, and `TIMELINE_STORM_SECONDS=n` has the long storm of `make test-slow` rage for as long.
"""

import os
from pathlib import Path

import pytest
from tests.e2e.timeline.timeline_history import DONE, History
from tests.e2e.timeline.timeline_storm import TimelineStorm

from ister.base.errors import MessageChangedError, TimelineLeaseLostError

# With this one all kinds of bad weather come within eight strokes.
SEED = int(os.environ.get("TIMELINE_STORM_SEED", "389"))
SHORT_S = 14.0
LONG_S = float(os.environ.get("TIMELINE_STORM_SECONDS", "180"))

pytestmark = pytest.mark.e2e


@pytest.mark.timeout(240)
async def test_a_timeline_keeps_its_promises_when_everybody_is_killed(tmp_path: Path) -> None:
    storm = TimelineStorm(tmp_path, SEED)

    history = await storm.run(SHORT_S)

    storm.judge(history)
    check_reach(storm, history)


@pytest.mark.slow
@pytest.mark.timeout(LONG_S + 300)
async def test_a_timeline_keeps_its_promises_in_a_long_storm(tmp_path: Path) -> None:
    storm = TimelineStorm(tmp_path, SEED + 1)

    history = await storm.run(LONG_S)

    storm.judge(history)
    check_reach(storm, history)
    leases = {(one.id, one.version, one.consumer) for one in history.handovers}
    assert len(history.handovers) > len(leases), f"no lease was handed back: {storm}"
    assert any(act.atomic and None in act.answers for act in history.acts), storm
    refused = {finish.answer for one in history.handovers for finish in one.finishes}
    assert TimelineLeaseLostError.__name__ in refused, storm


def check_reach(storm: TimelineStorm, history: History) -> None:
    """See that the storm was one: what may go wrong was near."""
    answers = {answer for act in history.acts for answer in act.answers}
    finishes = [finish for one in history.handovers for finish in one.finishes]

    assert storm.broker_kills > 2, storm
    assert storm.player_kills > 0, storm
    assert MessageChangedError.__name__ in answers, storm
    assert sum(finish.kind == DONE and finish.made for finish in finishes) > 50, storm
    assert "Traceback" not in storm.errors(), f"{storm}\n{storm.errors()}"
    assert "internal_error" not in storm.broker.log_text(), storm
