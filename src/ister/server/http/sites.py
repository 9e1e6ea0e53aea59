"""Checks that keep pages of other web sites from using the broker through a browser.

A web site can make its own name point at this machine (DNS rebinding). The browser then treats its
pages as pages of the broker, but it still sends the name of the site as `Host`. So a request is
answered only if its `Host` is a known name. An IP address is never the name of a web site, and is
always accepted.
"""

import ipaddress
from collections.abc import Iterable
from urllib.parse import urlsplit

from ister.base.errors import ForeignSiteError
from ister.server.http.asgi import Scope, header_of

# In `--http-allowed-hosts`: accept any name.
ANY = "*"


class Sites:
    """The names of this broker, without ports."""

    def __init__(self, names: Iterable[str]) -> None:
        """`names` may be written as in a browser, with a scheme or a port."""
        self._names = frozenset(_listed(name) for name in names if name.strip())

    def check_host(self, scope: Scope) -> None:
        """Raise `ForeignSiteError` if the `Host` of a request is not a name of this broker."""
        host = header_of(scope, b"host").decode("latin-1")
        # HTTP/1.0 has no `Host`, but every browser sends one.
        if host and not self._is_own(host):
            raise ForeignSiteError("host", host[:200])

    def check_origin(self, scope: Scope) -> None:
        """Raise `ForeignSiteError` for a request that comes from a page of another web site."""
        origin = header_of(scope, b"origin").decode("latin-1")
        host = header_of(scope, b"host").decode("latin-1")
        if origin:
            if origin.partition("://")[2].lower() != host.lower() and not self._is_listed(origin):
                raise ForeignSiteError("origin", origin[:200])
        elif header_of(scope, b"sec-fetch-site") == b"cross-site" and not _is_visit(scope):
            raise ForeignSiteError("origin", "another site")

    def _is_own(self, host: str) -> bool:
        if ANY in self._names:
            return True
        name = _name_of(f"//{host}")
        return name in self._names or _is_address(name)

    def _is_listed(self, origin: str) -> bool:
        name = _name_of(origin)
        return bool(name) and name in self._names and name not in LOCAL_NAMES


# Other programs on the machine may serve pages under these names.
LOCAL_NAMES = frozenset({"localhost", "127.0.0.1", "::1"})


def _is_visit(scope: Scope) -> bool:
    """Whether somebody follows a link: they see the page, and the site with the link does not."""
    return (
        scope["method"] in ("GET", "HEAD")
        and header_of(scope, b"sec-fetch-mode") == b"navigate"
        and header_of(scope, b"sec-fetch-dest") == b"document"
    )


def _listed(name: str) -> str:
    name = name.strip().lower().rstrip(".")
    if name == ANY or _is_address(name):
        return name
    return _name_of(name if "://" in name else f"//{name}") or name


def _name_of(url: str) -> str:
    try:
        return (urlsplit(url).hostname or "").rstrip(".")
    except ValueError:
        return ""


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True
