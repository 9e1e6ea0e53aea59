"""How long a command waits for its reply."""

import pytest

from ister.base.errors import IsterError, RequestTimeoutError
from ister.client.session.calls import LONG_MS, Calls
from ister.wire import CloseStage, Command, ListNamespaces, PublishStages

TIMEOUT_MS = 30_000


@pytest.mark.parametrize(
    ("command", "extra_ms"),
    [
        (ListNamespaces(), 0),
        (CloseStage(channel=1, topics=[]), LONG_MS),
        (PublishStages(stages=["a"], series="s", number=1), LONG_MS),
    ],
)
def test_a_command_times_out_when_its_time_is_over_and_not_before(
    command: Command, extra_ms: int
) -> None:
    calls = Calls(lambda: 1_000)
    told: list[Command | IsterError] = []
    assert calls.make(command, told.append) is not None

    calls.expire(1_000 + TIMEOUT_MS + extra_ms - 1, TIMEOUT_MS)
    assert told == []

    calls.expire(1_000 + TIMEOUT_MS + extra_ms, TIMEOUT_MS)
    assert [type(reply) for reply in told] == [RequestTimeoutError]
