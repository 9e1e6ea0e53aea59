"""Requests of the asyncio client, and their answers."""

import asyncio
from collections.abc import Callable

from ister.base.errors import BadRequestError, IsterError, TopicNotFoundError
from ister.client.aio.link import BrokerLink
from ister.client.aio.pool import ProducerPool
from ister.client.session import Answer, check_timeout, check_topic
from ister.codec import Attributes

# Of a request: whoever answers needs a core as well.
REQUEST_POLL_NS = 150_000


class Requesters:
    """See the module."""

    def __init__(self, link: Callable[[], BrokerLink], pool: ProducerPool) -> None:
        self._link = link
        self._pool = pool

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
        topic = check_topic(topic)
        if check_timeout(timeout_s) is None:
            raise BadRequestError(f"a request needs an end: {timeout_s!r} is no timeout in seconds")
        link = self._link()
        if not link.session.can_publish:
            await link.wait_open(timeout_s)
        pooled = await self._pool.take(topic)
        answer: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        address = link.session.ask(topic, answer, timeout_s)
        try:
            pooled.producer.send_request(payload, key, attributes, address)
            if len(link.session.requests) == 1:
                link.wakefulness.expect(answer.done, at_most_ns=REQUEST_POLL_NS)
            link.expire_requests(timeout_s)
            return await answer
        except IsterError as error:
            if isinstance(error, TopicNotFoundError):
                # The topic was deleted, or not to be had again after a reconnect: the next
                # request opens another producer.
                await self._pool.drop(topic)
            raise
        finally:
            pooled.users -= 1
            link.session.requests.forget(address[1])
