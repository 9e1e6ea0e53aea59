"""Where the brokers are, and how long to wait before trying them again."""

from urllib.parse import urlsplit

from ister.base import NATIVE_PORT
from ister.base.errors import BadRequestError
from ister.client.session.checks import check_text

SCHEME, TLS_SCHEME = "ister", "isters"

# The first retry comes almost at once, because most restarts are quick; then ever more rarely,
# so that a thousand clients do not keep a starting broker busy.
BACKOFF_S_MIN = 0.05
BACKOFF_S_MAX = 5.0


def parse_url(url: str) -> tuple[str, list[tuple[str, int]]]:
    """Return scheme and addresses of `ister://host:port,host:port`, or raise `BadRequestError`.

    With `isters://` the way there is TLS.
    """
    if any(mark in str(url) for mark in "@?#"):
        # Whatever stands there is most likely a secret: it is not shown.
        raise BadRequestError(
            "a url has no user, token or option in it, so no '@', '?' or '#': "
            "give a token as `token=`, or by ISTER_TOKEN"
        )
    scheme, separator, rest = check_text(url, "a url").partition("://")
    if not separator or scheme not in (SCHEME, TLS_SCHEME) or not rest:
        raise BadRequestError(f"url {url!r} is not 'ister://host:port', or isters:// with TLS")
    addresses = []
    for part in rest.rstrip("/").split(","):
        try:
            split = urlsplit(f"//{part}")
            host, port = split.hostname, split.port
        except ValueError:
            host, port = None, None
        if not host or split.path:
            raise BadRequestError(f"url {url!r} is not '{scheme}://host:port': {part!r} is wrong")
        addresses.append((host, NATIVE_PORT if port is None else port))
    return scheme, addresses


def backoff_s(attempt: int, chance: float) -> float:
    """Return how long to wait before attempt number `attempt` (from 1); `chance` is 0 to 1.

    Full jitter: clients that lost the same broker come back spread out, not all at once.
    """
    longest = min(BACKOFF_S_MAX, BACKOFF_S_MIN * 2.0 ** min(attempt, 16))
    return BACKOFF_S_MIN + (longest - BACKOFF_S_MIN) * chance
