"""Errors of the SDK in the words of the command line: options instead of Python arguments."""

import re

# Arguments whose options have the same name; the unit of a setting on the wire is dropped.
_ARGUMENT = re.compile(
    r"(?<![\w/.'\"`-])(max_age|max_bytes|max_messages|ttl|dedup_window|max_leases?"
    r"|min_compaction_lag"
    r"|dead_letter_topic|deliver_at|deliver_after|catch_up|ack_timeout|max_deliveries)(?:_ms)?"
    r"(?![\w'\"`/.-]*[/'\"`])\b"
)
# `kind='stream'`, as it would be written in Python.
_SETTING = re.compile(r"(?<![\w/.'\"`-])(kind|type|policy|durability|retention|start)='([\w-]+)'")
_PHRASES = {
    "`ca` of `ister.Tls`, or --tls-ca": "--tls-ca",
    "`cert` and `key` of `ister.Tls`, or --tls-cert": "--tls-cert and --tls-key",
    "an int is an offset; for a time give a datetime, or seconds since 1970 as a float": (
        "a whole number is an offset; write a time as 2026-11-15T10:00Z"
    ),
    "for so long a delay a timedelta": "for so long a delay give the unit, as in 20000d",
    "`client.timeline`": "`ister timeline`",
    "send again, or open the producer with `resend=True`": "send it again",
}


def in_options(text: str) -> str:
    """Return the text of an error with the options that it is about."""
    for said, words in _PHRASES.items():
        text = text.replace(said, words)
    text = _SETTING.sub(r"--\1 \2", text)
    return _ARGUMENT.sub(lambda found: "--" + found[1].replace("_", "-"), text)
