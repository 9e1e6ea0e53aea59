"""Requests to topics, waiting for the first answer.

Always true: every request gets an answer, an error or the end of its time, once.
"""

from collections.abc import Callable
from typing import NamedTuple

from ister.base.errors import (
    BadBatchError,
    IsterError,
    LimitReachedError,
    NoResponderError,
    RequestTimeoutError,
    ResponderFailedError,
)
from ister.base.limits import REQUESTS_MAX
from ister.client.session.futures import Future
from ister.codec import Attributes, Batch, Column

# The attribute of an answer that says why there is none: see `Client.service`.
ERROR_ATTRIBUTE = "x-service-error"


class Answer(bytes):
    """The answer to a request: the payload itself, with its attributes beside it."""

    @property
    def attributes(self) -> Attributes:
        """The attributes of the answer."""
        return getattr(self, "_attributes", {})

    @attributes.setter
    def attributes(self, attributes: Attributes) -> None:
        self._attributes = attributes

    @property
    def payload(self) -> bytes:
        """The payload, under the name that messages use."""
        return self


class _Asked(NamedTuple):
    topic: str
    future: Future
    timeout_s: float
    deadline_ms: float


class Requests:
    """Those of one session."""

    def __init__(self, now_ms: Callable[[], int]) -> None:
        self._now_ms = now_ms
        self._asked: dict[int, _Asked] = {}
        self._number = 0

    def __len__(self) -> int:
        return len(self._asked)

    def ask(self, topic: str, future: Future, timeout_s: float) -> int:
        """Reserve the number of a new request."""
        if len(self._asked) >= REQUESTS_MAX:
            raise LimitReachedError("requests_max", REQUESTS_MAX)
        self._number = number = self._number + 1
        deadline_ms = self._now_ms() + timeout_s * 1000
        self._asked[number] = _Asked(topic, future, timeout_s, deadline_ms)
        return number

    def expire(self) -> float | None:
        """Fail the requests whose time is over; return the next deadline in ms, if there is one."""
        now_ms = self._now_ms()
        next_ms: float | None = None
        for number, asked in list(self._asked.items()):
            if asked.deadline_ms <= now_ms:
                del self._asked[number]
                what = f"request to {asked.topic!r}"
                _fail(asked.future, RequestTimeoutError(what, asked.timeout_s))
            elif next_ms is None or asked.deadline_ms < next_ms:
                next_ms = asked.deadline_ms
        return next_ms

    def fail(self, numbers: list[int], error: IsterError) -> None:
        """Tell who asked that these requests were not sent on."""
        for number in numbers:
            asked = self._asked.pop(number, None)
            if asked is not None:
                _fail(asked.future, error)

    def fail_all(self, error: IsterError) -> None:
        """Tell everybody who asked."""
        self.fail(list(self._asked), error)

    def forget(self, number: int) -> None:
        """Drop the answer to a request, should it still come."""
        self._asked.pop(number, None)

    def on_no_responder(self, numbers: list[int]) -> None:
        """These reached nobody."""
        for number in numbers:
            asked = self._asked.pop(number, None)
            if asked is not None:
                _fail(asked.future, NoResponderError(asked.topic))

    def on_answers(self, batch: Batch) -> None:
        """Answers have come."""
        addresses = batch.replies
        if addresses is None:
            raise BadBatchError("answers without addresses")
        attributes = batch.attributes if batch.columns & Column.ATTRIBUTES else None
        asked = self._asked
        for slot, payload in enumerate(batch.payloads):
            waiting = asked.pop(addresses[slot][1], None)
            if waiting is None or waiting.future.done():
                continue
            answer = Answer(payload)
            if attributes is not None:
                answer.attributes = attributes[slot]
                if (reason := answer.attributes.get(ERROR_ATTRIBUTE)) is not None:
                    _fail(waiting.future, ResponderFailedError(waiting.topic, reason))
                    continue
            waiting.future.set_result(answer)


def _fail(future: Future, error: IsterError) -> None:
    if not future.done():
        future.set_exception(error)
