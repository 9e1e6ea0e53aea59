"""A topic that is not there: the error says which kind to create."""

from collections.abc import AsyncIterator, Awaitable, Callable

import pytest

import ister
from ister.base.errors import TopicNotFoundError
from ister.testing import MemoryBroker

TOPIC = "/default/missing"

Call = Callable[[ister.Client], Awaitable[object]]

CALLS: list[tuple[str, Call]] = [
    ("timeline", lambda client: client.timeline(TOPIC).put(b"", after=1)),
    ("timeline", lambda client: client.timeline(TOPIC).get("id")),
    ("timeline", lambda client: client.timeline(TOPIC).count()),
    ("timeline", lambda client: client.timeline(TOPIC).consume("c")),
    ("cron", lambda client: client.timeline(TOPIC).put(b"", id="a", cron="@hourly")),
    ("cron", lambda client: client.timeline(TOPIC).pause("a")),
    ("stream", lambda client: client.view(TOPIC)),
    ("stream", lambda client: client.reader(TOPIC)),
    ("stream", lambda client: client.update_topic(TOPIC, max_age=1)),
    ("stream", lambda client: client.purge(TOPIC)),
]


@pytest.fixture
async def client() -> AsyncIterator[ister.Client]:
    async with MemoryBroker() as broker, broker.connect() as client:
        yield client


@pytest.mark.parametrize(("kind", "call"), CALLS)
async def test_the_hint_names_the_kind_that_the_call_is_for(
    kind: str, call: Call, client: ister.Client
) -> None:
    with pytest.raises(TopicNotFoundError) as refused:
        await call(client)

    assert f"`ister topics create {TOPIC} --kind {kind}`" in str(refused.value)


def test_an_error_without_a_kind_travels_as_it_did_before() -> None:
    assert TopicNotFoundError(TOPIC).fields() == {"topic": TOPIC}
