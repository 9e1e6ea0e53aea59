"""Values of a pipeline file with the lines they were written on, so that messages can name them.

Always true:
- lines count from one, as in editors; line 0 means the whole file;
- YAML, TOML and the arguments of a Python pipeline all become trees of `ConfigNode` before anything
  else looks at them.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True, order=True)
class FileLine:
    """A line of a file."""

    file: str
    line: int = 0

    def __str__(self) -> str:
        return f"{self.file}:{self.line}" if self.line else self.file


@dataclass(frozen=True, slots=True, order=True)
class Remark:
    """A remark on a pipeline. A mistake stops the pipeline, a warning does not."""

    origin: FileLine
    text: str
    is_warning: bool = False

    def __str__(self) -> str:
        return f"{self.origin}: {'warning: ' if self.is_warning else ''}{self.text}"


Scalar = str | int | float | bool | None


@dataclass(frozen=True, slots=True)
class ConfigEntry:
    """One key of a mapping with its value."""

    key: str
    origin: FileLine
    value: "ConfigNode"


@dataclass(frozen=True, slots=True)
class ConfigNode:
    """A value with its origin: a mapping, a list or a scalar.

    `given` holds an object that came as it is, in the arguments of a Python pipeline.
    `text_line` is where a text of several lines begins, which may be below its key.
    """

    origin: FileLine
    entries: tuple[ConfigEntry, ...] | None = None
    items: "tuple[ConfigNode, ...] | None" = None
    scalar: Scalar = None
    given: object = field(default=None, compare=False)
    text_line: int = 0

    @property
    def kind(self) -> str:
        """What this is, in the words of a message."""
        if self.entries is not None:
            return "a mapping"
        if self.items is not None:
            return "a list"
        match self.scalar:
            case None:
                return "nothing"
            case bool():
                return "true or false"
            case int() | float():
                return "a number"
            case _:
                return "a text"

    def find(self, key: str) -> "ConfigNode | None":
        """Return the value of a key, if this is a mapping that has it."""
        for entry in self.entries or ():
            if entry.key == key:
                return entry.value
        return None


def walk(node: ConfigNode) -> Iterator[ConfigNode]:
    """Yield a node and everything in it."""
    pending = [node]
    while pending:
        one = pending.pop()
        yield one
        pending.extend(entry.value for entry in one.entries or ())
        pending.extend(one.items or ())
