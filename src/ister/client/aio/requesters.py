"""Requests of the asyncio client: a producer for each topic that is asked on, and the answers."""

import asyncio
from collections.abc import Callable
from contextlib import suppress

from ister.base.errors import BadRequestError, IsterError, TopicNotFoundError
from ister.client.aio.link import BrokerLink
from ister.client.aio.producer import Producer
from ister.client.session import Answer, check_text, check_timeout
from ister.codec import Attributes

# Of a request: whoever answers needs a core as well.
REQUEST_POLL_NS = 150_000

# Topics that a producer is kept open for; the oldest makes room.
REQUEST_TOPICS_MAX = 256


class Requesters:
    """See the module."""

    def __init__(
        self, link: Callable[[], BrokerLink], make_producer: Callable[[str], Producer]
    ) -> None:
        self._link = link
        self._make_producer = make_producer
        self._requesters: dict[str, Producer] = {}

    async def request(
        self,
        topic: str,
        payload: bytes,
        *,
        timeout_s: float,
        key: str | None,
        attributes: Attributes | None,
    ) -> Answer:
        """Send a request and return the first answer: see `Client.request`."""
        check_text(topic, "a topic")
        if check_timeout(timeout_s) is None:
            raise BadRequestError(f"a request needs an end: {timeout_s!r} is no timeout in seconds")
        link = self._link()
        if not link.session.can_publish:
            await link.wait_open(timeout_s)
        requester = self._requesters.get(topic) or await self._open(topic)
        answer: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        address = link.session.ask(topic, answer, timeout_s)
        try:
            requester.send_request(payload, key, attributes, address)
            if len(link.session.requests) == 1:
                link.wakefulness.expect(answer.done, at_most_ns=REQUEST_POLL_NS)
            link.expire_requests(timeout_s)
            return await answer
        except IsterError as error:
            if requester.closed or isinstance(error, TopicNotFoundError):
                # The topic was deleted, or not to be had again after a reconnect: the next
                # request tries anew.
                self._requesters.pop(topic, None)
                await requester.close(flush=False)
            raise
        finally:
            link.session.requests.forget(address[1])

    async def _open(self, topic: str) -> Producer:
        producer = self._make_producer(topic)
        await producer.open()
        if topic in self._requesters:
            await producer.close(flush=False)
            return self._requesters[topic]
        self._requesters[topic] = producer
        while len(self._requesters) > REQUEST_TOPICS_MAX:
            oldest = self._requesters.pop(next(iter(self._requesters)))
            # With a flush: a request that is under way must not fail because of another topic,
            # nor this one because of that.
            with suppress(IsterError):
                await oldest.close()
        return producer
