"""The log of code that lives in other people's programs: it speaks through their `logging`.

Events keep their names and fields; whoever configures nothing sees warnings only, on stderr.
"""

import logging
from collections.abc import MutableMapping
from typing import Any

import structlog


def library_logger(name: str) -> structlog.stdlib.BoundLogger:
    """Return a logger of events, behind the standard library's logger of that name."""
    logger: structlog.stdlib.BoundLogger = structlog.wrap_logger(
        logging.getLogger(name),
        processors=[structlog.stdlib.filter_by_level, _render],
        wrapper_class=structlog.stdlib.BoundLogger,
    )
    return logger


def _render(
    _: object, __: str, event: MutableMapping[str, Any]
) -> tuple[tuple[str], dict[str, Any]]:
    exc_info = event.pop("exc_info", None)
    words = [str(event.pop("event")), *(f"{name}={value!r}" for name, value in event.items())]
    return (" ".join(words),), {"exc_info": exc_info}
