"""The threads of a storage: its own for writing, maybe shared ones for everything else."""

import time

from ister.broker.scheduling import Worker


class Workers:
    """The threads of a storage: its own for writing, maybe shared ones for everything else."""

    __slots__ = ("compacting", "housekeeping", "reading", "reading_remote", "writing")

    def __init__(
        self,
        *,
        writing: Worker,
        reading: Worker,
        housekeeping: Worker,
        compacting: Worker | None = None,
        reading_remote: Worker | None = None,
    ) -> None:
        self.writing = writing
        self.reading = reading
        # For what lies in the remote tier, which may not answer for minutes.
        self.reading_remote = reading_remote or reading
        self.housekeeping = housekeeping
        # A rewrite takes minutes; without a thread of its own, checkpoints wait for it.
        self.compacting = compacting or housekeeping

    def close(self, timeout_s: float | None = None) -> bool:
        """End them all. Blocks until what was given to them is done; return whether it is.

        What is being written is waited for however long it takes, everything else for `timeout_s`.
        """
        self.writing.close()
        ends_s = None if timeout_s is None else time.monotonic() + timeout_s
        done = True
        for worker in (
            self.reading,
            self.reading_remote,
            self.housekeeping,
            self.compacting,
        ):
            left_s = None if ends_s is None else max(0.0, ends_s - time.monotonic())
            done &= worker.close(left_s)
        return done
