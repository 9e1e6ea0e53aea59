"""What becomes of a topic that does not exist when a producer or a consumer opens it."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

# Nothing is made: the client gets `TopicNotFoundError`.
OFF = "off"
AUTO_CREATE_WORDS = (OFF, "live", "stream")

_NAMESPACE = re.compile(r"[\w-]+\Z")


@dataclass(frozen=True, slots=True)
class AutoCreate:
    """Which kind of topic is made, by namespace."""

    default: str = "live"
    namespaces: Mapping[str, str] = field(default_factory=dict)

    def kind_of(self, namespace: str) -> str:
        """Return 'live', 'stream' or 'off'."""
        return self.namespaces.get(namespace, self.default)

    @classmethod
    def parse(cls, text: str) -> "AutoCreate":
        """Return what `live,shop=stream` says, or raise `ValueError`."""
        default = ""
        namespaces: dict[str, str] = {}
        for part in text.split(","):
            namespace, equals, word = map(str.strip, part.rpartition("="))
            if word not in AUTO_CREATE_WORDS:
                raise ValueError(f"{word[:40]!r} is not one of {', '.join(AUTO_CREATE_WORDS)}")
            if not equals:
                if default:
                    raise ValueError(f"has two words for all namespaces: {default} and {word}")
                default = word
            elif not _NAMESPACE.match(namespace):
                raise ValueError(f"{namespace[:40]!r} is not the name of a namespace")
            elif namespace in namespaces:
                raise ValueError(f"names the namespace {namespace!r} twice")
            else:
                namespaces[namespace] = word
        return cls(default or cls().default, namespaces)
