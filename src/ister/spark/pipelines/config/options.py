"""Checks the data source's options in a pipeline file by the rules of the data source itself."""

from collections.abc import Mapping

from ister.base.errors import ConfigError
from ister.spark.options import read_options
from ister.spark.pipelines.config.definition import PayloadFormat, Text
from ister.spark.pipelines.config.fields import Fields

# What the pipeline says by keys of its own, in the words of the data source.
_OWN_KEYS = {
    "url": "broker", "token": "token", "tokenfile": "token", "tlsca": "tls_ca",
    "tlscert": "tls_cert", "tlskey": "tls_key",
    "topic": "topic", "topics": "topics", "pattern": "pattern",
    "startingoffsets": "start", "startingtimestamp": "start", "valueformat": "format",
    "valueschema": "schema", "maxoffsetspertrigger": "max_rows_per_batch",
    "maxbytespertrigger": "max_bytes_per_batch", "checkpointlocation": "checkpoint",
}  # fmt: skip

# How the data source begins each of its mistakes.
_PREFIX = "option of 'ister': "
# Any topic: only the option in question is to be looked at.
_TOPIC = "/default/any"


def check_options(
    fields: Fields,
    options: Mapping[str, Text],
    *,
    reads: bool = False,
    writes: bool = False,
    format_: PayloadFormat = PayloadFormat.BYTES,
) -> None:
    """Note what is wrong with options for reading or writing, each at its own line."""
    node = fields.find("options")
    for entry in (node.entries or ()) if node else ():
        word, value = entry.key.lower(), options.get(entry.key)
        if word in _OWN_KEYS:
            said = f"option `{entry.key}` is said with the key `{_OWN_KEYS[word]}`"
            fields.note(entry.origin, said)
        elif isinstance(value, str):
            mistakes: dict[str, None] = {}
            if reads:
                mistakes |= dict.fromkeys(_read_mistakes(entry.key, value, format_))
            if writes:
                mistakes |= dict.fromkeys(_write_mistakes(entry.key, value))
            for mistake in mistakes:
                fields.note(entry.origin, mistake)


def _read_mistakes(name: str, value: str, format_: PayloadFormat) -> list[str]:
    try:
        read_options({"topic": _TOPIC, "valueFormat": format_, name: value}, streaming=True)
    except ConfigError as error:
        return _shorten(error)
    return []


def _write_mistakes(name: str, value: str) -> list[str]:
    # It takes a while to load, and is needed only when there are options.
    from ister.spark.sink import write_options

    try:
        write_options({"topic": _TOPIC, name: value}, streaming=True)
    except ConfigError as error:
        return _shorten(error)
    return []


def _shorten(error: ConfigError) -> list[str]:
    """Return the mistakes without the list of all options, where one is near enough."""
    said = [f"option {one.removeprefix(_PREFIX)}" for one in error.mistakes]
    return said[:1] if "did you mean" in said[0] else said
