"""Stages: batches that wait in the broker until somebody publishes them, once."""

import inspect
from collections.abc import Callable

import pytest
from tests.contract.harness import Harness

import ister
from ister.base.errors import (
    BadRequestError,
    BatchTooLargeError,
    ConnectionLostError,
    MessageTooLargeError,
    StageExistsError,
    StageNotFoundError,
    StageTooLargeError,
    TopicNotFoundError,
)
from ister.base.limits import KIB, STAGE_TOPICS_MAX
from ister.codec import encode

OUT, PARTS = "/default/out", "/default/parts"


@pytest.fixture
async def streams(client: ister.Client) -> ister.Client:
    """A client of a broker with a stream, and one with partitions."""
    await client.create_topic(OUT, kind="stream")
    await client.create_topic(PARTS, kind="stream", partitions=2)
    return client


async def held(client: ister.Client, topic: str = OUT) -> list[bytes]:
    """Return what a topic holds."""
    async with client.reader(topic) as reader:
        return [payload async for batch in reader for payload in batch.payloads]


async def stage(client: ister.Client, word: str, *payloads: bytes, topic: str = OUT) -> None:
    async with client.stage(word) as stage:
        await stage.add(topic, encode(payloads))


async def test_what_is_staged_is_seen_when_it_is_published(streams: ister.Client) -> None:
    await stage(streams, "a", b"0", b"1")
    await stage(streams, "b", b"2")
    assert await held(streams) == []

    done = await streams.publish_stages(["a", "b"], series="query", number=1)
    assert (done.repeated, done.messages) == (False, 3)
    assert await held(streams) == [b"0", b"1", b"2"]


async def test_a_stage_is_for_any_streams_and_says_what_it_holds(streams: ister.Client) -> None:
    parts = [f"{PARTS}-part-{number}" for number in range(2)]
    stage = streams.stage("a")
    await stage.open()
    for topic in (*parts, OUT, parts[0]):
        await stage.add(topic, encode([topic.encode()]))
    report = await stage.close()

    assert report.messages == 4
    assert await stage.close() == report
    await streams.publish_stages(["a"], series="query", number=1)
    assert await held(streams, parts[0]) == [parts[0].encode()] * 2
    assert await held(streams, parts[1]) == [parts[1].encode()]
    assert await held(streams, OUT) == [OUT.encode()]


async def test_a_stage_is_for_so_many_topics(streams: ister.Client) -> None:
    batch = encode([b"x"])
    stage = streams.stage("a")
    await stage.open()
    for number in range(STAGE_TOPICS_MAX):
        await stage.add(f"/default/{number}", batch)
    with pytest.raises(StageTooLargeError):
        await stage.add(OUT, batch)
    await stage.add("/default/0", batch)
    with pytest.raises(TopicNotFoundError):
        await stage.close()


async def test_a_number_of_a_series_is_published_once(streams: ister.Client) -> None:
    for word in ("a", "b"):
        await stage(streams, word, b"0")
        done = await streams.publish_stages([word], series="query", number=7)
        assert done.repeated is (word == "b")

    assert await held(streams) == [b"0"]


async def test_a_stage_outlives_the_client_that_made_it(
    harness: Harness, streams: ister.Client
) -> None:
    async with harness.connect() as other:
        await stage(other, "a", b"0")

    await streams.publish_stages(["a"], series="query", number=1)
    assert await held(streams) == [b"0"]


async def test_an_exception_in_the_block_drops_the_stage(streams: ister.Client) -> None:
    async def fail() -> None:
        async with streams.stage("a") as half:
            await half.add(OUT, encode([b"0"]))
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await fail()
    with pytest.raises(StageNotFoundError):
        await streams.publish_stages(["a"], series="query", number=1)
    await stage(streams, "a", b"1")


async def test_a_stage_that_is_dropped_cannot_be_published(streams: ister.Client) -> None:
    await stage(streams, "a", b"0")
    await streams.drop_stages(["a", "unknown"])

    with pytest.raises(StageNotFoundError) as caught:
        await streams.publish_stages(["a"], series="query", number=1)
    assert caught.value.stage == "a"
    assert await held(streams) == []


async def test_a_word_is_for_one_stage(streams: ister.Client) -> None:
    await stage(streams, "a", b"0")
    with pytest.raises(StageExistsError):
        await streams.stage("a").open()


async def test_giving_up_a_stage_that_was_refused_leaves_the_other_of_its_word(
    streams: ister.Client,
) -> None:
    await stage(streams, "a", b"0")
    refused = streams.stage("a")
    with pytest.raises(StageExistsError):
        await refused.open()
    give_up: Callable[[], object] = refused.abandon
    given_up = give_up()
    if inspect.isawaitable(given_up):  # The blocking client's, in a thread.
        await given_up

    await streams.publish_stages(["a"], series="query", number=1)
    assert await held(streams) == [b"0"]


async def test_what_is_wrong_with_a_batch_is_told_at_the_end(streams: ister.Client) -> None:
    large = streams.stage("a")
    await large.add(OUT, encode([b"x" * (1024 * KIB + 1)]))
    await large.add(OUT, encode([b"fine"]))
    with pytest.raises(MessageTooLargeError):
        await large.close()

    nowhere = streams.stage("b")
    await nowhere.add("/default/nowhere", encode([b"0"]))
    with pytest.raises(TopicNotFoundError):
        await nowhere.close()


async def test_a_batch_larger_than_the_broker_takes_does_not_leave(streams: ister.Client) -> None:
    large = streams.stage("a")
    await large.open()
    with pytest.raises(BatchTooLargeError):
        await large.add(OUT, encode([b"x" * (1024 * KIB)] * 3))
    await large.add(OUT, encode([b"fine"]))

    assert (await large.close()).messages == 1


async def test_more_than_the_window_arrives(streams: ister.Client) -> None:
    payload = bytes(1000 * KIB)
    async with streams.stage("a") as large:
        for _ in range(24):
            await large.add(OUT, encode([payload]))
    done = await streams.publish_stages(["a"], series="query", number=1)

    assert done.messages == 24


async def test_a_stage_that_has_ended_takes_no_more(streams: ister.Client) -> None:
    async with streams.stage("a") as done:
        await done.add(OUT, encode([b"0"]))
    with pytest.raises(BadRequestError):
        await done.add(OUT, encode([b"1"]))


@pytest.mark.parametrize("keep", [0.5, 86_401.0, "long"])
async def test_a_stage_is_kept_for_a_second_to_a_day(streams: ister.Client, keep: float) -> None:
    with pytest.raises(BadRequestError, match=r"keep is (1s to 1d|seconds or a timedelta), not"):
        await streams.stage("a", keep=keep).open()


async def test_a_text_is_no_list_of_stages(streams: ister.Client) -> None:
    for call in (
        streams.publish_stages("ab", series="query", number=1),
        streams.drop_stages("ab"),
    ):
        with pytest.raises(BadRequestError, match="list of words"):
            await call


async def test_a_lost_connection_takes_an_open_stage_with_it(
    harness: Harness, streams: ister.Client
) -> None:
    await stage(streams, "closed", b"0")
    half = streams.stage("half")
    await half.add(OUT, encode([b"1"]))
    await harness.disconnect_all()
    with pytest.raises(ConnectionLostError):
        await half.close()

    await stage(streams, "half", b"1")
    await streams.publish_stages(["closed", "half"], series="query", number=1)
    assert await held(streams) == [b"0", b"1"]


async def test_after_a_restart_a_repetition_is_known_and_stages_are_not(
    harness: Harness, streams: ister.Client
) -> None:
    await stage(streams, "a", b"0")
    await streams.publish_stages(["a"], series="query", number=1)
    await stage(streams, "b", b"1")
    await harness.restart()

    assert (await streams.publish_stages(["a"], series="query", number=1)).repeated
    with pytest.raises(StageNotFoundError):
        await streams.publish_stages(["b"], series="query", number=2)
    assert await held(streams) == [b"0"]
