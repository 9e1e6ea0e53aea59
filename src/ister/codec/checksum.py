"""The one checksum of the platform: CRC-32C, which current processors compute by themselves.

The only file that knows the library.
"""

from crc32c import crc32c

__all__ = ["crc32c"]
