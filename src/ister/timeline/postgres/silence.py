"""A connection to PostgreSQL that does not wait for ever.

A server that is stopped still has its machine answer for it, and no timeout of the network or of
the server ends a statement then. So whoever waits for an answer gives up by itself.
"""

from time import monotonic
from typing import Any, TypeVar

import psycopg
from psycopg.abc import PQGen
from psycopg.rows import TupleRow

# Longer than the server waits for a lock (`lock_timeout`), which it tells us better.
SILENCE_S_MAX = 10.0

T = TypeVar("T")


class LimitedConnection(psycopg.Connection[TupleRow]):
    """One whose calls raise `OperationalError` when the server is silent for too long.

    It is closed then: nobody knows what the server will still do of what it was told.
    """

    silence_s_max = SILENCE_S_MAX

    def wait(self, gen: PQGen[T], *args: Any, **options: Any) -> T:
        """Run a piece of work of the library to its end; everything that waits comes here."""
        return super().wait(self._limited(gen), *args, **options)

    def _limited(self, gen: PQGen[T]) -> PQGen[T]:
        try:
            wanted = next(gen)
            while True:
                deadline = monotonic() + self.silence_s_max
                # The library asks whether something has come, and several times a second if not.
                while not (ready := (yield wanted)):
                    if monotonic() > deadline:
                        self.pgconn.finish()
                        told = f"no answer for {self.silence_s_max:g} s: is the server stopped?"
                        raise psycopg.OperationalError(told)
                wanted = gen.send(ready)
        except StopIteration as end:
            found: T = end.value
            return found
