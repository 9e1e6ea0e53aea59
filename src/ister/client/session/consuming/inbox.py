"""What one subscription or reader has received and nobody has taken yet: bounded by credit.

Always true: what the broker may send and what was not taken yet are together at most one credit
window; credit goes back a half window at a time, so that a busy consumer costs one small frame
for thousands of messages. In pull mode there is credit only for what was asked for. A consumer that
shares messages with others has a window that grows and shrinks, see `sharing_window`. With
`until_settled` the window also covers what was taken and is not settled.
"""

from collections import deque
from typing import TYPE_CHECKING

from ister.base.errors import IsterError, ProtocolError
from ister.base.limits import CREDIT_MAX
from ister.client.session.consuming.sharing_window import SOON_IN_BATCHES_MS, SharingWindow
from ister.client.session.futures import Future
from ister.codec import Batch
from ister.wire import credit_frame

if TYPE_CHECKING:
    from ister.client.session.port import SessionPort

# Finished futures are swept out when more than this have gathered.
WAITERS_KEPT = 16

# Of a window that is shared: what goes back, at least, when the application waits. Less would make
# a frame for each of many small batches.
IDLE_PART = 8

# More than any window: credit waits until it is asked for.
NEVER = 2**62


class Inbox:
    """The batches that one consumer has received and not taken yet, bounded by credit."""

    def __init__(
        self,
        session: "SessionPort",
        *,
        channel: int,
        credit_count: int,
        credit_bytes: int,
        pull: bool = False,
    ) -> None:
        self.channel = channel
        self.batches: deque[Batch] = deque()
        self.closed: IsterError | None = None
        self.paused = False
        self.pull = pull
        # Whether credit goes back when a message is settled, not when it is taken.
        self.until_settled = False
        self._unsettled_count = 0
        self.credit_count = credit_count
        self._credit_count_max = credit_count
        self._window: SharingWindow | None = None
        self._session = session
        self._credit_bytes = credit_bytes
        # Messages that the broker may still send: what bounds our memory, whatever it does.
        self._credit_left = 0
        # Credit that is to go back: of what was taken; in pull mode of what was asked for.
        self._owed_count = 0
        self._owed_bytes = 0
        self._asked_count = 0
        # Whether the broker is taking back the credit it has.
        self._withdrawing = False
        # What is owed when it goes back: half a window.
        self._due_count = NEVER
        self._due_bytes = NEVER
        self._set_due()
        self._waiters: list[Future] = []

    def wait(self, waiter: Future) -> None:
        """Finish `waiter` when there is something to take, or it has ended."""
        if len(self._waiters) > WAITERS_KEPT:
            # Those that timed out or were cancelled leave their futures behind.
            self._waiters = [w for w in self._waiters if not w.done()]
        self._waiters.append(waiter)
        if self._window is not None and self._owed_count * IDLE_PART >= self.credit_count:
            # It has more room than the broker knows, which would send to others instead.
            self.pay()

    def take(self) -> Batch | None:
        """Return the next batch, or `None` when there is none yet.

        Its credit goes back to the broker. Raises what ended it, once all is taken.
        """
        if not self.batches:
            if self.closed is not None:
                raise self.closed
            return None
        batch = self.batches.popleft()
        if self.until_settled:
            self._unsettled_count += batch.count
        else:
            self._owed_count += batch.count
        self._owed_bytes += batch.size_bytes
        if self._window is not None:
            session = self._session
            now_ms, round_trip_ms = session.now_ms(), session.round_trip_ms
            self._change(self._window, self._window.on_taken(batch.count, now_ms, round_trip_ms))
        if self._owed_count >= self._due_count or self._owed_bytes >= self._due_bytes:
            self.pay()
        return batch

    def settle(self, count: int) -> None:
        """Give back the credit of so many messages that were taken, with `until_settled`."""
        self._unsettled_count -= count
        self._owed_count += count
        self.pay()

    def on_deliver(self, batch: Batch) -> None:
        """A batch has come. Raises `ProtocolError` when the broker had no credit for it."""
        self._credit_left -= batch.count
        if self._credit_left < 0:
            raise ProtocolError("more messages than there was credit for")
        self.batches.append(batch)
        if self._waiters:
            self.wake()

    def share(self, *, shares: bool) -> None:
        """Have a window that begins small, or the usual one; before `on_opened`."""
        if shares and self._window is None:
            self._window = SharingWindow(self._credit_count_max)
        elif not shares:
            self._window = None
            self.credit_count = self._credit_count_max
            self._set_due()

    def want(self, count: int) -> None:
        """Have a window for `count` messages at once, if the window is not what was asked for."""
        window = self._window
        if window is not None and count != window.least:
            self._change(window, window.on_wanted(count))
            if count > self._credit_left:
                self.pay()

    def take_batches(self) -> None:
        """Take note that the application takes whole batches, each of which may take it a while."""
        if self._window is not None:
            self._window.soon_ms = SOON_IN_BATCHES_MS

    @property
    def shares(self) -> bool:
        """Whether it has a window that grows and shrinks."""
        return self._window is not None

    def withdraw(self, size_bytes: int) -> None:
        """The broker is asked to take back the credit it has, with batches of so many bytes.

        Until `on_withdrawn` none is given.
        """
        assert self._window is not None, "a window of a fixed size is not given back"
        self._window.on_given_back()
        self.credit_count = self._window.level
        self._set_due()
        self._owed_bytes += size_bytes
        self._withdrawing = True

    def on_withdrawn(self) -> None:
        """The broker has no credit: what it sent with it was before this."""
        self._withdrawing = False
        self._credit_left = 0
        self._owed_count = self.credit_count - sum(batch.count for batch in self.batches)
        if any(not waiter.done() for waiter in self._waiters):
            self.pay()

    def ask(self, count: int) -> None:
        """Let the broker send so much that `count` messages come; in pull mode only."""
        at_hand = sum(batch.count for batch in self.batches)
        short = min(count, CREDIT_MAX) - at_hand - self._credit_left - self._asked_count
        if short > 0:
            self._asked_count += short
            self.pay()

    def on_opened(self) -> None:
        """The broker has opened its end, for the first time or again: it has no credit yet."""
        if self._window is not None:
            self._window.on_attached()
            self.credit_count = self._window.level
            self._set_due()
        self._withdrawing = False
        # What was asked for and has not come; or a whole window less what is here.
        self._asked_count += self._credit_left
        here_count = sum(batch.count for batch in self.batches) + self._unsettled_count
        self._owed_count = self.credit_count - here_count
        self._owed_bytes = self._credit_bytes - sum(batch.size_bytes for batch in self.batches)
        self._credit_left = 0
        self.pay()

    def drop(self) -> None:
        """Throw away what was not taken. Its credit goes back with `pay`."""
        while self.batches:
            batch = self.batches.popleft()
            self._asked_count += batch.count
            self._owed_count += batch.count
            self._owed_bytes += batch.size_bytes

    def pause(self) -> None:
        """Give no more credit. What the broker has credit for still comes."""
        self.paused = True
        self._set_due()

    def resume(self) -> None:
        """Give credit again."""
        self.paused = False
        self._set_due()
        self.pay()

    def fail(self, error: IsterError) -> None:
        """End it; who waits gets `error` once everything is taken."""
        if self.closed is None:
            self.closed = error
        self.wake()

    def wake(self) -> None:
        """Finish everybody who waits."""
        waiters, self._waiters = self._waiters, []
        for waiter in waiters:
            if not waiter.done():
                waiter.set_result(None)

    def _change(self, window: SharingWindow, change: int) -> None:
        if change:
            self._owed_count += change
            self.credit_count = window.level
            self._set_due()

    def _set_due(self) -> None:
        if self.paused or self.pull:
            self._due_count = self._due_bytes = NEVER
        elif self._window is not None and not (self._window.sends_ahead and self.credit_count > 1):
            # The next message comes when it is waited for. It could come earlier, and would then
            # be stuck behind the one that the application works on, however long that takes.
            self._due_count = self._due_bytes = NEVER
        else:
            self._due_count = (self.credit_count + 1) // 2
            self._due_bytes = (self._credit_bytes + 1) // 2

    def pay(self) -> None:
        """Give back all credit that is owed, unless paused."""
        if self.paused or self._withdrawing:
            return
        count = self._asked_count if self.pull else max(self._owed_count, 0)
        size_bytes = max(self._owed_bytes, 0)
        # Less than nothing is owed while more waits here than the window has become.
        self._owed_count = min(self._owed_count, 0)
        self._owed_bytes = self._asked_count = 0
        if count or size_bytes:
            self._credit_left += count
            self._session.send(credit_frame(self.channel, count, size_bytes))
