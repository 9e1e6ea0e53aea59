"""The topics of a pipeline's sinks, which are there and right before Spark starts."""

import logging
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from socketserver import BaseRequestHandler, BaseServer
from types import MappingProxyType

import pytest

import ister.sync
from ister.base.errors import NotConnectedError, TopicNotFoundError, WrongKindError
from ister.spark.pipelines.config.definition import (
    ConsoleSink,
    Definition,
    PipelineSource,
    RunOptions,
    TopicSink,
)
from ister.spark.pipelines.config.positions import FileLine
from ister.spark.pipelines.runtime import running
from ister.spark.pipelines.runtime.sink_topics import make_topics
from ister.testing import ThreadedBroker

NOBODY = "ister://127.0.0.1:1"


@pytest.fixture(scope="module")
def broker() -> Iterator[ThreadedBroker]:
    with ThreadedBroker() as broker:
        yield broker


@pytest.fixture
def client(broker: ThreadedBroker) -> Iterator[ister.sync.Client]:
    with ister.sync.connect(broker.url) as client:
        yield client


def pipeline(url: str, *sinks: TopicSink | ConsoleSink, dead: str | None = None) -> Definition:
    return Definition(
        name="p",
        broker=url,
        sources=(PipelineSource(name="orders", topics=("/default/orders",)),),
        sinks=sinks,
        dead_letters=dead,
        checkpoint="",
    )


def to_topic(topic: str | None, **options: str) -> TopicSink:
    origin = FileLine("p.yaml", 3)
    return TopicSink(
        name="out", view="orders", topic=topic, options=MappingProxyType(options), origin=origin
    )


def test_missing_topics_of_sinks_and_dead_letters_are_created_as_streams(
    broker: ThreadedBroker, client: ister.sync.Client
) -> None:
    made = make_topics(
        pipeline(
            broker.url,
            to_topic("/default/made", partitions="2"),
            to_topic(None),
            ConsoleSink(name="shown", view="orders"),
            dead="/default/made.dead",
        )
    )

    assert made is None
    assert {row.topic: row.kind for row in client.topics("/default/>")} == {
        "/default/made-part-0": "stream",
        "/default/made-part-1": "stream",
        "/default/made.dead": "stream",
    }


def test_a_live_topic_is_refused_with_the_sink_and_the_way_out(
    broker: ThreadedBroker, client: ister.sync.Client
) -> None:
    client.create_topic("/default/live")

    failure = make_topics(pipeline(broker.url, to_topic("/default/live")))

    assert failure is not None
    assert (failure.can_pass, failure.exit_code) == (False, WrongKindError.exit_code)
    assert failure.text.startswith("p.yaml:3: sink `out`: topic '/default/live' is a live topic: ")
    assert "`ister topics delete /default/live`" in failure.text


def test_live_dead_letters_are_refused(broker: ThreadedBroker, client: ister.sync.Client) -> None:
    client.create_topic("/default/live-letters")

    failure = make_topics(pipeline(broker.url, dead="/default/live-letters"))

    assert failure is not None
    assert failure.text.startswith("`dead_letters`: topic '/default/live-letters' is a live topic")


def test_a_topic_that_may_not_be_created_must_exist(broker: ThreadedBroker) -> None:
    failure = make_topics(pipeline(broker.url, to_topic("/default/absent", createTopic="false")))

    assert failure is not None
    assert failure.exit_code == TopicNotFoundError.exit_code


def test_a_pipeline_without_topics_asks_no_broker() -> None:
    assert make_topics(pipeline(NOBODY, ConsoleSink(name="shown", view="orders"))) is None


def test_a_broker_that_is_away_can_come_back() -> None:
    failure = make_topics(pipeline(NOBODY, to_topic("/default/out")))

    assert failure is not None
    assert (failure.can_pass, failure.exit_code) == (True, NotConnectedError.exit_code)


def test_a_run_with_a_wrong_topic_ends_before_spark_starts(
    broker: ThreadedBroker,
    client: ister.sync.Client,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    client.create_topic("/default/also-live")
    definition = pipeline(broker.url, to_topic("/default/also-live"))
    definition = replace(definition, checkpoint=str(tmp_path / "checkpoint"))

    assert running.run(definition, RunOptions()) == WrongKindError.exit_code

    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 1
    assert "topic '/default/also-live' is a live topic" in lines[0]


def test_what_a_batch_raises_is_not_logged_to_the_terminal_by_py4j_first(
    caplog: pytest.LogCaptureFixture,
) -> None:
    logger = logging.getLogger("py4j.clientserver")
    before = logger.level
    try:
        running._quiet_loggers()
        logger.error("There was an exception while executing the Python Proxy")
    finally:
        logger.setLevel(before)

    assert caplog.records == []


def test_a_silent_server_prints_no_traceback_when_java_ends_first(
    capsys: pytest.CaptureFixture[str],
) -> None:
    server = BaseServer(("", 0), BaseRequestHandler)
    running.silence(server)
    try:
        raise EOFError
    except EOFError:
        server.handle_error(b"", None)  # type: ignore[arg-type]  # not looked at

    assert capsys.readouterr() == ("", "")
