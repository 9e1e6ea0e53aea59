"""What several parts of a pipeline file share: watermarks, deduplication, names and paths.

A function that reads a part returns it even when the part has mistakes, so that other parts that
refer to it can be checked too. With mistakes in the notes there is no pipeline in the end.
"""

import re
from pathlib import Path

from ister.spark.intervals import interval_ms, interval_text
from ister.spark.pipelines.config.definition import Deduplicate, Watermark
from ister.spark.pipelines.config.fields import Fields, Notes
from ister.spark.pipelines.config.positions import ConfigEntry, ConfigNode, FileLine

# The keys of parts within parts. docs/pipelines.md has every one of them (checked).
WATERMARK_KEYS = ("column", "delay")
DEDUPLICATE_KEYS = ("columns",)

NAME_LENGTH_MAX = 100

_VIEW = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\Z")
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*\Z")
_URL = re.compile(r"[a-z][a-z0-9+.-]*://")


def watermark(fields: Fields, notes: Notes) -> Watermark | None:
    """Return the watermark of a source or a step."""
    node = fields.find("watermark")
    if node is None:
        return None
    inner = Fields(node, what="a watermark", known=WATERMARK_KEYS, notes=notes)
    column, delay = inner.text("column"), inner.text("delay")
    if node.entries is None:
        return None
    if column is None and not inner.has("column"):
        inner.missing("column", "the time of the event")
    if delay is None:
        if not inner.has("delay"):
            inner.missing("delay", "how late rows may be, as in `30 seconds`")
        delay = "0 seconds"
    try:
        delay_ms = interval_ms(delay)
    except ValueError as error:
        inner.mistake("delay", f"`delay: {delay}` {error}")
        delay_ms = 0
    return Watermark(
        column=column or "",
        delay=interval_text(delay_ms),
        delay_ms=delay_ms,
        origin=fields.origin_of("watermark"),
    )


def deduplicate(fields: Fields, notes: Notes) -> Deduplicate | None:
    """Return the columns by which a source or a step drops rows. A list alone is the columns."""
    node = fields.find("deduplicate")
    if node is None:
        return None
    if node.entries is None:
        node = as_mapping(node, "columns")
    inner = Fields(node, what="`deduplicate`", known=DEDUPLICATE_KEYS, notes=notes)
    if not inner.has("columns"):
        inner.missing("columns", "what makes a row the same as another")
    return Deduplicate(columns=inner.texts("columns"), origin=fields.origin_of("deduplicate"))


def check_view(name: str, origin: FileLine, notes: Notes) -> None:
    """Note a name that cannot be a view's."""
    if not _VIEW.match(name) or len(name) > NAME_LENGTH_MAX:
        said = f"`{name}` cannot be a view: use letters, digits and `_`, not a digit first"
        notes.mistake(origin, said)


def check_name(name: str, what: str, origin: FileLine, notes: Notes) -> None:
    """Note a name that cannot be a pipeline's or a sink's: both name folders."""
    if not _NAME.match(name) or len(name) > NAME_LENGTH_MAX:
        said = f"`{name}` cannot name {what}: use letters, digits and `. _ -`, at most "
        notes.mistake(origin, f"{said}{NAME_LENGTH_MAX} of them")


def is_url(path: str) -> bool:
    """Whether a path is in some store, and not on this machine's disk."""
    return _URL.match(path) is not None and not path.startswith("file://")


def absolute_path(path: str, folder: str) -> str:
    """Return a path of a file as an absolute one; a URL stays as it is."""
    if is_url(path):
        return path
    return str(Path(folder, path.removeprefix("file://")).expanduser().absolute())


def as_mapping(node: ConfigNode, key: str) -> ConfigNode:
    """Return the mapping that a short form stands for: one key with this value."""
    return ConfigNode(node.origin, entries=(ConfigEntry(key, node.origin, node),))


def label_of(node: ConfigNode, nameless: str, word: str) -> str:
    """Return how messages call a part: by its name, if it has one."""
    name = node.find("name")
    return f"{word} `{name.scalar}`" if name is not None and name.scalar else nameless
