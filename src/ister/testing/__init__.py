"""Public fakes for tests: a clock, a broker in memory, a broker in a thread.

The pytest fixtures `ister_broker`, `ister_client`, `ister_clock` and `ister_url` come with the
installation; see `pytest_ister`.
"""

from ister.testing.clock import VirtualClock, VirtualTimer, settle
from ister.testing.memory import MemoryBroker
from ister.testing.threaded import ThreadedBroker
from ister.testing.transport import MemoryTransport, connect_pair

__all__ = [
    "MemoryBroker",
    "MemoryTransport",
    "ThreadedBroker",
    "VirtualClock",
    "VirtualTimer",
    "connect_pair",
    "settle",
]
