"""What every control command is: a map with its name in it."""

import re

import msgspec


def _tag(name: str) -> str:
    """`CreateTopic` travels as `create_topic`."""
    return re.sub(r"(?<!^)(?=[A-Z])", "_", name).lower()


class Tagged(msgspec.Struct, tag_field="op", tag=_tag):
    """A map with the command's name under `op`. Fields a peer does not know are skipped."""
