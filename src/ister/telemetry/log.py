"""The structured log: set up once by the program that owns the process, never at import.

Always true:
- lines go to stderr, because stdout carries data;
- tracebacks show code, never the values of variables: those may be payloads;
- an event is one line, with control characters escaped: a client chooses its own names;
- text that looks like a password or a key is hidden: errors of libraries may contain one.
"""

import io
import logging
import os
import sys
from collections.abc import MutableMapping
from typing import Any, TextIO

import structlog

from ister.base import hide_secrets, printable, printable_lines

_LEVELS = {
    "debug": logging.DEBUG,
    "info": logging.INFO,
    "warning": logging.WARNING,
    "error": logging.ERROR,
}


def configure_log(*, level: str, format: str, stream: TextIO | None = None) -> None:
    """Write events of `level` and above to `stream` (stderr): `console`, `json`, or `auto`.

    `auto` is `console` on a terminal. The standard library's log goes the same way, so that
    what asyncio and other libraries have to say is not lost; they speak from `warning` on.
    """
    out = sys.stderr if stream is None else stream
    is_terminal = out.isatty()
    processors: list[structlog.typing.Processor] = [
        structlog.processors.add_log_level,
        _add_logger,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
    ]
    if format == "console" or (format == "auto" and is_terminal):
        processors.append(_hide_secrets)
        processors.append(_escape_controls)
        processors.append(
            structlog.dev.ConsoleRenderer(
                # https://no-color.org
                colors=is_terminal and not os.environ.get("NO_COLOR"),
                exception_formatter=_write_traceback,
                pad_event_to=24,
            )
        )
    else:
        processors.append(structlog.processors.format_exc_info)
        processors.append(_hide_secrets)
        processors.append(structlog.processors.JSONRenderer())
    structlog.configure(
        processors=processors,
        wrapper_class=structlog.make_filtering_bound_logger(_LEVELS[level]),
        logger_factory=lambda *names: _Lines(names[0] if names else "ister", out),
        cache_logger_on_first_use=True,
    )
    root = logging.getLogger()
    root.handlers = [_Bridge(max(_LEVELS[level], logging.WARNING))]


class _Lines:
    """Writes finished lines, and knows which part of the platform speaks."""

    def __init__(self, name: str, stream: TextIO) -> None:
        self.name = name
        self._stream = stream

    def msg(self, line: str) -> None:
        """Write one line. One call, so that lines of two threads never mix."""
        try:
            self._stream.write(line + "\n")
            self._stream.flush()
        except (OSError, ValueError):
            # Whoever read our log is gone, or the disk under it is full. Serving goes on.
            pass

    debug = info = warning = warn = error = critical = exception = fatal = log = msg


class _Bridge(logging.Handler):
    """Passes records of the standard library's log on to ours."""

    def emit(self, record: logging.LogRecord) -> None:
        """Turn a record into an event."""
        logger = structlog.get_logger(record.name)
        exc_info = record.exc_info if record.exc_info and record.exc_info[0] else None
        logger.log(record.levelno, record.getMessage(), exc_info=exc_info)


def _hide_secrets(_: Any, __: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    for name, value in event.items():
        if isinstance(value, str):
            event[name] = hide_secrets(value)
    return event


def _escape_controls(_: Any, __: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    """Escape control characters in texts. Other values are shown by `repr`, which escapes them."""
    for name, value in event.items():
        if isinstance(value, str) and not value.isprintable():
            event[name] = printable(value)
    return event


def _write_traceback(out: TextIO, exc_info: Any) -> None:
    shown = io.StringIO()
    structlog.dev.plain_traceback(shown, exc_info)
    out.write(printable_lines(hide_secrets(shown.getvalue())))


def _add_logger(logger: Any, _: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    event["logger"] = logger.name
    return event
