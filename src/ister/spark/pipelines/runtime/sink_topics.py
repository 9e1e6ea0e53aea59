"""The topics that a pipeline writes to: created and checked before Spark starts.

Spark takes ten seconds to start, and a window a minute to close. A mistake in the name of a topic
is reported before that, and the topic is there for consumers from the beginning.
"""

from collections.abc import Iterator
from contextlib import ExitStack

from ister.base.errors import IsterError, TopicNotFoundError
from ister.client import sync
from ister.spark.clients import BrokerEndpoint, connect
from ister.spark.pipelines.config import DEAD_LETTERS, Definition, TopicSink
from ister.spark.pipelines.runtime.failures import Failure, explain
from ister.spark.pipelines.runtime.queries import write_options
from ister.spark.sink import ensure_topic
from ister.spark.sink import write_options as parse_options

# How long a broker has to answer. Spark starts without it then, and asks again.
TIMEOUT_S = 5.0


def make_topics(definition: Definition) -> Failure | None:
    """Create the missing topics of sinks and dead letters as streams.

    Return the failure when a topic cannot be written to, or its broker cannot be reached. Topics
    that a column of each row names are created with their first row.
    """
    clients: dict[BrokerEndpoint, sync.Client] = {}
    with ExitStack() as stack:
        for sink in _sinks_with_topics(definition):
            try:
                options = parse_options(write_options(definition, sink), streaming=True)
                client = clients.get(options.broker)
                if client is None:
                    client = connect(options.broker, timeout_s=TIMEOUT_S)
                    clients[options.broker] = stack.enter_context(client)
                _make(client, sink, options.partitions, create=options.create_topic)
            except IsterError as error:
                return _failure(sink, error)
    return None


def _sinks_with_topics(definition: Definition) -> Iterator[TopicSink]:
    for sink in definition.sinks:
        if isinstance(sink, TopicSink) and sink.topic is not None:
            yield sink
    if definition.dead_letters is not None:
        yield TopicSink(name=DEAD_LETTERS, view="", topic=definition.dead_letters)


def _make(client: sync.Client, sink: TopicSink, partitions: int, *, create: bool) -> None:
    assert sink.topic is not None, "_named"
    if not create and not client.topics(sink.topic):
        raise TopicNotFoundError(sink.topic, "stream")
    ensure_topic(client, sink.topic, partitions=partitions, create=create)


def _failure(sink: TopicSink, error: IsterError) -> Failure:
    found = explain(error)
    place = f"{sink.origin}: " if sink.origin.line else ""
    what = "" if sink.name == DEAD_LETTERS else "sink "
    return Failure(f"{place}{what}`{sink.name}`: {found.text}", found.can_pass, found.exit_code)
