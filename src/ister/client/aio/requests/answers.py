"""Answers to requests: those of one turn of the event loop leave together."""

import asyncio

from ister.base.errors import MessageTooLargeError
from ister.client.aio.connection.link import BrokerLink
from ister.client.session import attributes_size, check_extras, cut_batches
from ister.codec import Attributes, ReplyAddress, encode, encode_bare
from ister.wire import reply_frame, reply_lone_frame


class Answers:
    """What a client has to say to those who asked."""

    def __init__(self, link: BrokerLink) -> None:
        self._link = link
        self._waiting: list[tuple[ReplyAddress, bytes, Attributes | None]] = []

    def add(
        self,
        address: ReplyAddress,
        payload: bytes,
        attributes: Attributes | None,
        *,
        lone: bool = False,
    ) -> None:
        """Send an answer with the others; the answer to a lone request leaves at once."""
        self.check(payload, attributes)
        if lone and not self._waiting and not attributes:
            session = self._link.session
            if session.can_answer:
                session.connection.send(reply_lone_frame(encode_bare(payload, reply=address)))
                self._link.write()
            return
        if not self._waiting:
            asyncio.get_running_loop().call_soon(self.flush)
        self._waiting.append((address, payload, attributes and dict(attributes)))

    def check(self, payload: bytes, attributes: Attributes | None) -> None:
        """Raise what is wrong with an answer before it is queued among others."""
        size, most = len(payload), self._link.session.message_bytes_max
        if size > most:
            raise MessageTooLargeError("(reply)", size, most)
        if attributes is not None:
            check_extras(None, attributes, None)

    def flush(self) -> None:
        """Send everything that was added."""
        answers, self._waiting = self._waiting, []
        session = self._link.session
        if not answers or not session.can_answer:
            return
        sizes = [len(payload) + attributes_size(a) for _, payload, a in answers]
        for start, end, _ in cut_batches(sizes, session.batch_bytes):
            attributes = [a for _, _, a in answers[start:end]]
            parts = encode(
                [payload for _, payload, _ in answers[start:end]],
                attributes=attributes if any(attributes) else None,
                replies=[address for address, _, _ in answers[start:end]],
            )
            session.connection.send_all(reply_frame(parts))
        self._link.write()
