"""Names of namespaces, topics, partitions, subscriptions; and wildcard patterns over topics.

A topic is `/namespace/topic`. The topic part is one or more tokens joined by dots. A pattern may
use `*` for exactly one token and, as its last token, `>` for one or more tokens. Partition N of
a partitioned topic `/ns/t` is the topic `/ns/t-part-N`.

Users may leave out the default namespace: `orders` is `/default/orders`. `full_name` completes such
a name where it comes in, in the SDK, on the command line and over HTTP. The broker and its protocol
know full names only.
"""

import re
from collections.abc import Callable
from typing import NewType

from ister.base.errors import BadNameError, ReservedNamespaceError
from ister.base.limits import NAME_BYTES_MAX

TopicName = NewType("TopicName", str)
Pattern = NewType("Pattern", str)

DEFAULT_NAMESPACE = "default"
# For topics of the broker itself. Clients can read them, but not change them.
SYSTEM_NAMESPACE = "system"

_RESERVED = f"/{SYSTEM_NAMESPACE}/"
_TOKEN = re.compile(r"[\w-]+\Z")
_PARTITION = re.compile(r"(.+)-part-(0|[1-9][0-9]*)\Z")
_PLAIN = re.compile(r"[\w.:@-]+\Z")


def full_name(name: str, namespace: str = DEFAULT_NAMESPACE) -> str:
    """Return a topic or pattern with its namespace: a bare one is in `namespace`.

    Everything else stays as it is, the empty text included.
    """
    return f"/{namespace}/{name}" if name and "/" not in name else name


def parse_topic(name: str) -> TopicName:
    """Return `name` as a topic name, or raise `BadNameError`."""
    for token in _split(name)[1]:
        if not _TOKEN.match(token):
            raise BadNameError(name, "tokens hold letters, digits, '_' and '-', joined by dots")
    return TopicName(name)


def parse_pattern(name: str) -> Pattern:
    """Return `name` as a pattern: a topic name whose tokens may be `*`, and last of all `>`."""
    tokens = _split(name)[1]
    for slot, token in enumerate(tokens):
        if token == ">" and slot != len(tokens) - 1:
            raise BadNameError(name, "'>' stands only at the end")
        if token not in ("*", ">") and not _TOKEN.match(token):
            raise BadNameError(name, "a wildcard is a whole token: 'orders.*.eu', 'orders.>'")
    return Pattern(name)


def parse_plain(name: str, what: str) -> str:
    """Return `name` as the name of a namespace, subscription, producer or consumer."""
    if len(name.encode(errors="replace")) > NAME_BYTES_MAX:
        raise BadNameError(name[:40] + "...", f"{what} is longer than {NAME_BYTES_MAX} bytes")
    if not _PLAIN.match(name):
        raise BadNameError(name, f"{what} holds letters, digits and . _ : @ - only")
    return name


def is_wildcard(pattern: str) -> bool:
    """Whether a pattern can match more than the topic of the same name."""
    return "*" in pattern or ">" in pattern


def namespace_of(name: str) -> str:
    """Return the namespace of a parsed topic or pattern."""
    return name[1 : name.index("/", 1)]


def check_not_reserved(name: str) -> None:
    """Raise `ReservedNamespaceError` for a topic or pattern that clients may not change.

    The broker calls this for every request that creates, changes or removes something, so that all
    ports refuse it alike.
    """
    if name.startswith(_RESERVED):
        raise ReservedNamespaceError(name)


def partition_name(topic: str, partition: int) -> TopicName:
    """Return the topic name of one partition."""
    return TopicName(f"{topic}-part-{partition}")


def find_partition(name: str) -> tuple[TopicName, int] | None:
    """Split `/ns/t-part-3` into `/ns/t` and 3; `None` for any other name."""
    found = _PARTITION.match(name)
    return (TopicName(found[1]), int(found[2])) if found else None


def compile_pattern(pattern: str) -> Callable[[str], object]:
    """Return a function that does the same as `matches`, and is faster for very many names."""
    if is_wildcard(pattern) and find_partition(pattern) is not None:
        # Wildcards match base names, and no base name ends like a partition.
        return lambda name: False
    _, namespace, rest = pattern.split("/", 2)
    tokens = rest.split(".")
    several = tokens[-1] == ">"
    parts = [r"[^.]+?" if token == "*" else re.escape(token) for token in tokens]
    if several:
        parts[-1] = r".+?"
    body = r"\.".join(parts)
    return re.compile(rf"/{re.escape(namespace)}/{body}(?:-part-(?:0|[1-9][0-9]*))*\Z").match


def matches(pattern: str, topic: str) -> bool:
    """Whether a parsed pattern covers a parsed topic name. Partitions match by their base name."""
    if pattern == topic:
        return True
    partition = find_partition(topic)
    if partition is not None:
        return matches(pattern, partition[0])
    _, namespace, rest = topic.split("/", 2)
    _, pattern_namespace, pattern_rest = pattern.split("/", 2)
    if namespace != pattern_namespace:
        return False
    tokens, wanted = rest.split("."), pattern_rest.split(".")
    if wanted[-1] == ">":
        return len(tokens) >= len(wanted) and _tokens_match(wanted[:-1], tokens)
    return len(tokens) == len(wanted) and _tokens_match(wanted, tokens)


def _tokens_match(wanted: list[str], tokens: list[str]) -> bool:
    return all(w in ("*", t) for w, t in zip(wanted, tokens, strict=False))


def _split(name: str) -> tuple[str, list[str]]:
    if len(name.encode(errors="replace")) > NAME_BYTES_MAX:
        raise BadNameError(name[:40] + "...", f"longer than {NAME_BYTES_MAX} bytes")
    parts = name.split("/")
    if len(parts) != 3 or parts[0]:
        raise BadNameError(name, "a topic is '/namespace/topic', for example '/default/orders'")
    if not _TOKEN.match(parts[1]):
        raise BadNameError(name, "the namespace holds letters, digits, '_' and '-'")
    if not parts[2]:
        raise BadNameError(name, "the topic part is empty")
    return parts[1], parts[2].split(".")
