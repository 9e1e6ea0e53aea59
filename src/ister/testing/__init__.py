"""Public fakes for tests: a clock, disks, a broker in memory, a broker in a thread.

The pytest fixtures `ister_broker`, `ister_client`, `ister_clock` and `ister_url` come with the
installation; see `pytest_ister`.
"""

from ister.objects import MemoryDisk
from ister.testing.clock import VirtualClock, VirtualTimer, settle
from ister.testing.disk import Crash, Fault, FaultyDisk, Keep, Operation
from ister.testing.full import SmallDisk
from ister.testing.memory import MemoryBroker
from ister.testing.threaded import ThreadedBroker
from ister.testing.transport import MemoryTransport, connect_pair

__all__ = [
    "Crash",
    "Fault",
    "FaultyDisk",
    "Keep",
    "MemoryBroker",
    "MemoryDisk",
    "MemoryTransport",
    "Operation",
    "SmallDisk",
    "ThreadedBroker",
    "VirtualClock",
    "VirtualTimer",
    "connect_pair",
    "settle",
]
