"""How an incompatibility is told: the place, both sides, and which data cannot be read."""

from typing import NamedTuple


class Break(NamedTuple):
    """Something that `writer` writes at `place` and `reader` does not take.

    `writer` and `reader` are a few words for each side, `why` a sentence where they do not say it.
    """

    place: str
    writer: str
    reader: str
    why: str = ""

    def backward(self) -> str:
        """Return the text for a new reader and an old writer."""
        reason = f": {self.why}" if self.why else ""
        return f"{self.place}: {self.writer} became {self.reader}, old data cannot be read{reason}"

    def forward(self) -> str:
        """Return the text for an old reader and a new writer."""
        reason = f": {self.why}" if self.why else ""
        return (
            f"{self.place}: {self.reader} became {self.writer}, "
            f"the old schema cannot read new data{reason}"
        )
