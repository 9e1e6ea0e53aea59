"""The environment variables that name a broker: for `ister.connect()` and the command line.

Always true: they are read when a client is made, never at import; one that is empty counts as not
set; the text of a token is in no `repr` and no error.
"""

import os

from ister.base import (
    DEFAULT_URL,
    TLS_CA_VARIABLE,
    TLS_CERT_VARIABLE,
    TLS_KEY_VARIABLE,
    TOKEN_FILE_VARIABLE,
    TOKEN_VARIABLE,
    URL_VARIABLE,
)
from ister.base.errors import BadRequestError
from ister.client.aio.connection.sockets import token_file
from ister.client.session import TLS_SCHEME, Tls, Token


def url_from_environment() -> str:
    """Return the url in ISTER_URL, or the default one."""
    return os.environ.get(URL_VARIABLE) or DEFAULT_URL


def token_from_environment() -> Token | None:
    """Return the token in ISTER_TOKEN, or what reads the file in ISTER_TOKEN_FILE.

    Raises `BadRequestError` when both are set.
    """
    token, path = os.environ.get(TOKEN_VARIABLE), os.environ.get(TOKEN_FILE_VARIABLE)
    if token and path:
        raise BadRequestError(
            f"{TOKEN_VARIABLE} and {TOKEN_FILE_VARIABLE} are both set: unset one of them"
        )
    return token_file(path) if path else token or None


def tls_from_environment(url: str) -> Tls | None:
    """Return the files of TLS for `url`: none unless it is isters://.

    The variables are for all brokers, and mean nothing to one without TLS.
    """
    if not url.startswith(f"{TLS_SCHEME}://"):
        return None
    ca, cert, key = (
        os.environ.get(name) or None
        for name in (TLS_CA_VARIABLE, TLS_CERT_VARIABLE, TLS_KEY_VARIABLE)
    )
    if bool(cert) != bool(key):
        raise BadRequestError(
            f"{TLS_CERT_VARIABLE} and {TLS_KEY_VARIABLE} belong together: set both, or none"
        )
    return Tls(ca, cert, key) if ca or cert else None
