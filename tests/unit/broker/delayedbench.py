"""A broker with streams and timelines in memory, whose clock is moved; it sends messages later."""

from collections.abc import Sequence
from typing import Any

from tests.unit.broker.streambench import TOPIC, Outcome, StreamBench
from tests.unit.broker.timelines.timelinebench import FailingStore, TravellingCalls

from ister.base.errors import IsterError
from ister.broker import DelayedBatch, InlineWorker
from ister.broker.delayed import Delays
from ister.codec import Batch, encode


class DelayedBench(StreamBench):
    """See the module. What is stored outlives `restart`."""

    def __init__(self, **options: Any) -> None:
        self.timelines = FailingStore()
        self._words = 0
        super().__init__(**options)

    def _start(self, now_ms: int) -> None:
        super()._start(now_ms)
        self.broker.adopt_timelines(
            TravellingCalls(self.timelines, InlineWorker(self._call_soon)),
            self.timelines.topics(),
            call_soon=self._call_soon,
        )

    @property
    def delays(self) -> Delays:
        assert self.broker.delays is not None
        return self.broker.delays

    def delay(
        self,
        payloads: Sequence[bytes],
        in_ms: int | Sequence[int],
        *,
        topic: str = TOPIC,
        name: str = "p",
        word: str = "",
        settle: bool = True,
        **columns: Any,
    ) -> Outcome:
        """Send messages that are due so long from now; what is raised is told as well."""
        self._words += 1
        head, body = encode(payloads, producer=name.encode(), numbered=False, **columns)
        spans = [in_ms] * len(payloads) if isinstance(in_ms, int) else in_ms
        now_ms = self.clock.now_ms()
        delayed = DelayedBatch(
            Batch(head + body), word or f"word-{self._words}", [now_ms + span for span in spans]
        )
        outcome = Outcome()
        try:
            self.broker.delay(self.producer(topic, name), delayed, outcome)
        except IsterError as error:
            outcome(error)
        if settle:
            self.settle()
        return outcome

    def payloads(self, topic: str = TOPIC) -> list[bytes]:
        """Return what a stream holds."""
        return [message.payload for message in self.stored(topic)]

    def waiting_rows(self) -> int:
        """Return how many messages are in the store."""
        return sum(self.timelines.count(row.number, 0, 2**62) for row in self.timelines.topics())
