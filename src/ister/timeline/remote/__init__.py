"""The process beside the broker that makes calls of a store, and what is said to it."""

from ister.timeline.remote.frames import PROCESS_MODULE, WAS_THERE, Frames, encode

__all__ = ["PROCESS_MODULE", "WAS_THERE", "Frames", "encode"]
