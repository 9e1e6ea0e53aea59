"""Errors 5xxx: ask the new owner."""

from dataclasses import dataclass
from typing import ClassVar

from ister.base.errors.tree import MovedError


@dataclass(eq=False)
class ShardMovedError(MovedError):
    """Another broker has taken over the storage of a topic; nothing was stored."""

    code: ClassVar[int] = 5010
    # The journal that was taken over: `object` or `local`.
    shard: str
    # The file or object that the other broker wrote.
    place: str

    def __str__(self) -> str:
        return (
            f"another broker has taken over the {self.shard} storage (it wrote {self.place}); "
            "nothing was stored: connect to that broker"
        )
