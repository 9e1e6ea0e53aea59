"""The native door: Ister's own protocol over TCP."""

from ister.server.native.door import NativeDoor
from ister.server.native.session import NativeSession

__all__ = ["NativeDoor", "NativeSession"]
