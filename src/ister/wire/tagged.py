"""What every control command is: a map with its name in it."""

import re
from typing import Annotated, TypeAlias, TypeVar

import msgspec

from ister.base.limits import REQUEST_ITEMS_MAX

_T = TypeVar("_T")

# A list of a request. That it is too long is found before its items are decoded.
Listed: TypeAlias = Annotated[list[_T], msgspec.Meta(max_length=REQUEST_ITEMS_MAX)]
# The same of a map with names.
Mapped: TypeAlias = Annotated[dict[str, _T], msgspec.Meta(max_length=REQUEST_ITEMS_MAX)]


def _tag(name: str) -> str:
    """`CreateTopic` travels as `create_topic`."""
    return re.sub(r"(?<!^)(?=[A-Z])", "_", name).lower()


class Tagged(msgspec.Struct, tag_field="op", tag=_tag):
    """A map with the command's name under `op`. Fields a peer does not know are skipped."""
