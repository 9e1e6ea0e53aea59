"""The native door: Ister's own protocol over TCP."""

from ister.server.native.door import BUSY_POLL_US, HEARTBEAT_MS, NativeDoor
from ister.server.native.session import NativeSession

__all__ = ["BUSY_POLL_US", "HEARTBEAT_MS", "NativeDoor", "NativeSession"]
