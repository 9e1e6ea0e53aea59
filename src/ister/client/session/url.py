"""Where the brokers are, and how long to wait before trying them again."""

from urllib.parse import urlsplit

from ister.base import NATIVE_PORT
from ister.base.errors import BadRequestError
from ister.client.session.checks import check_text

# The first retry comes almost at once, because most restarts are quick; then ever more rarely,
# so that a thousand clients do not keep a starting broker busy.
BACKOFF_S_MIN = 0.05
BACKOFF_S_MAX = 5.0


def parse_url(url: str) -> list[tuple[str, int]]:
    """Return the addresses in `ister://host:port,host:port`, or raise `BadRequestError`."""
    scheme, separator, rest = check_text(url, "a url").partition("://")
    if not separator or scheme != "ister" or not rest:
        raise BadRequestError(f"url {url!r} is not 'ister://host:port'")
    addresses = []
    for part in rest.rstrip("/").split(","):
        try:
            split = urlsplit(f"//{part}")
            host, port = split.hostname, split.port
        except ValueError:
            host, port = None, None
        if not host or split.path or split.query or split.username:
            raise BadRequestError(f"url {url!r} is not 'ister://host:port': {part!r} is wrong")
        addresses.append((host, NATIVE_PORT if port is None else port))
    return addresses


def backoff_s(attempt: int, chance: float) -> float:
    """Return how long to wait before attempt number `attempt` (from 1); `chance` is 0 to 1.

    Full jitter: clients that lost the same broker come back spread out, not all at once.
    """
    longest = min(BACKOFF_S_MAX, BACKOFF_S_MIN * 2.0 ** min(attempt, 16))
    return BACKOFF_S_MIN + (longest - BACKOFF_S_MIN) * chance
