"""Where topics are, whether producers and consumers are well, and what is stored."""

from collections import OrderedDict
from collections.abc import Callable
from typing import Any

from ister.base import parse_topic
from ister.base.errors import BadRequestError, TopicNotFoundError, WrongKindError
from ister.broker import Broker, StreamTopic
from ister.server.grpc.calls.status import Refusal, StatusCode
from ister.server.grpc.messages import message

TopicLookupResponse = message("danube.TopicLookupResponse")
TopicPartitionsResponse = message("danube.TopicPartitionsResponse")
HealthCheckResponse = message("danube.HealthCheckResponse")
ListSegmentDescriptorsResponse = message("danube.ListSegmentDescriptorsResponse")

CONNECT = 1
OK = 0
CLOSE = 1
# Ids that were told to close, to be told once.
TOLD_MAX = 10_000

IsKnown = Callable[[int], bool]


class Discovery:
    """Finds topics."""

    def __init__(self, broker: Broker) -> None:
        # How clients reach this broker; empty when it cannot know that.
        self.broker_url = ""
        self._broker = broker

    async def lookup(self, request: Any, _: object) -> Any:
        """Tell which broker has a topic: this one."""
        topic = parse_topic(request.topic)
        if topic not in self._broker.catalog.topics:
            raise TopicNotFoundError(topic)
        if not self.broker_url:
            # Whatever it is told else, the client would connect there. After an error it stays
            # with the address it has, which is a good one.
            raise Refusal(
                StatusCode.FAILED_PRECONDITION,
                "this broker listens on every address and does not know which one reaches it: "
                "start it with --advertise HOST",
            )
        return TopicLookupResponse(
            request_id=request.request_id,
            response_type=CONNECT,
            connect_url=self.broker_url,
            broker_url=self.broker_url,
        )

    async def partitions(self, request: Any, _: object) -> Any:
        """Name the partitions of a topic, or the topic itself; nothing when it is not there."""
        found = self._broker.catalog.find(parse_topic(request.topic))  # type: ignore[arg-type]
        return TopicPartitionsResponse(
            request_id=request.request_id, partitions=[topic.name for topic in found]
        )

    async def segments(self, request: Any, _: object) -> Any:
        """List the closed segments that hold something of a stream behind an offset."""
        topic = self._broker.catalog.topics.get(parse_topic(request.topic))
        if topic is None:
            raise TopicNotFoundError(request.topic)
        if not isinstance(topic, StreamTopic):
            raise WrongKindError(topic.name, topic.kind, "only streams have segments")
        return ListSegmentDescriptorsResponse(
            segments=[
                {
                    "segment_id": span.segment.name,
                    "start_offset": span.first_offset,
                    "end_offset": span.end_offset - 1,
                    "size": span.own_bytes,
                    "etag": f"{span.segment.number}-{span.segment.size_bytes}",
                    "created_at": max(span.first_ms, 0) // 1000,
                }
                for span in topic.storage.log.index.spans(topic.record.topic)
                if span.end_offset - 1 > request.after_offset or request.after_offset == 0
            ]
        )


class Health:
    """Tells clients whether their producers and consumers are well.

    An id that is not known is told to close once and is an error from then on: the loop that asks
    for it ends with an error, while with CLOSE it would set off a new subscription each time.
    """

    def __init__(self, is_producer: IsKnown, is_consumer: IsKnown) -> None:
        self._is_known = (is_producer, is_consumer)
        self._told: OrderedDict[tuple[int, int], None] = OrderedDict()

    async def check(self, request: Any, _: object) -> Any:
        """Answer for one producer or consumer."""
        if not 0 <= request.client < len(self._is_known):
            raise BadRequestError(f"there is no client type {request.client}")
        key = (request.client, request.id)
        if self._is_known[request.client](request.id):
            self._told.pop(key, None)
            return HealthCheckResponse(status=OK)
        if key in self._told:
            raise Refusal(StatusCode.NOT_FOUND, f"{request.id} is not known, as was told")
        self._told[key] = None
        if len(self._told) > TOLD_MAX:
            self._told.popitem(last=False)
        return HealthCheckResponse(status=CLOSE)
