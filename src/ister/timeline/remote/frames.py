"""What a broker and the process that keeps its timelines say to each other: pickled things, each
behind its length.
"""  # noqa: D205 - one sentence

import pickle
import struct
from typing import Any

# How many bytes follow.
HEAD = struct.Struct(">Q")
# What that process runs.
PROCESS_MODULE = "ister.timeline.remote.process"
# An argument of it: its file was there before, and one that is gone is not made anew.
WAS_THERE = "was-there"


def encode(thing: object) -> bytes:
    """Return a frame."""
    data = pickle.dumps(thing, pickle.HIGHEST_PROTOCOL)
    return HEAD.pack(len(data)) + data


class Frames:
    """Bytes as they come, and the things they are."""

    def __init__(self) -> None:
        self._data = bytearray()

    def add(self, data: bytes) -> list[Any]:
        """Take bytes, and return what is complete by them."""
        self._data += data
        things: list[Any] = []
        start = 0
        while len(self._data) - start >= HEAD.size:
            begin = start + HEAD.size
            end = begin + HEAD.unpack_from(self._data, start)[0]
            if end > len(self._data):
                break
            with memoryview(self._data) as view, view[begin:end] as frame:
                things.append(pickle.loads(frame))  # noqa: S301 - of our broker, or its process
            start = end
        del self._data[:start]
        return things
