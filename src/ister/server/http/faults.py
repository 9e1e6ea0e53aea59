"""Errors as the HTTP API tells them: a status that follows from the base class, and one JSON shape.

Always true: every answer of the API that is not 2xx has an `ErrorBody`. What only HTTP knows (no
such path, method, media type; a body too large or too slow) is a `RefusedError`: it has a status
of its own, and is told as a `BadRequestError`.
"""

from http import HTTPStatus

from msgspec import Struct, json

from ister.base.errors import (
    BadRequestError,
    BrokenError,
    BusyError,
    ConflictError,
    DeniedError,
    FieldValue,
    ForeignSiteError,
    InvalidError,
    IsterError,
    MovedError,
    NotFoundError,
    UnauthenticatedError,
)
from ister.server.http.asgi import JSON, Header, Page

# Base class: the number of an error that has none of its own, and the status. One leaf has its own
# status, which makes HTTP's clients ask for a token.
STATUSES: dict[type[IsterError], tuple[int, int]] = {
    UnauthenticatedError: (2000, HTTPStatus.UNAUTHORIZED),
    InvalidError: (1000, HTTPStatus.BAD_REQUEST),
    DeniedError: (2000, HTTPStatus.FORBIDDEN),
    NotFoundError: (3000, HTTPStatus.NOT_FOUND),
    ConflictError: (4000, HTTPStatus.CONFLICT),
    MovedError: (5000, HTTPStatus.MISDIRECTED_REQUEST),
    BusyError: (6000, HTTPStatus.SERVICE_UNAVAILABLE),
    BrokenError: (7000, HTTPStatus.INTERNAL_SERVER_ERROR),
}

# Limits and failed disks take about so long to be better.
RETRY_AFTER_S = 1


class ErrorReport(Struct):
    """What went wrong. Match on `code`, never on `message`; `docs/errors.md` has every number."""

    code: int
    name: str
    message: str
    fields: dict[str, FieldValue]


class ErrorBody(Struct):
    """The body of every answer that is not a success."""

    error: ErrorReport


class RefusedError(Exception):
    """A request that HTTP has a status for. Not in the tree of errors: it has no number."""

    def __init__(self, status: int, reason: str, *headers: Header) -> None:
        super().__init__(reason)
        self.status = status
        self.reason = reason
        self.headers = headers


def status_of(error: type[IsterError]) -> tuple[int, int]:
    """Return the number of the base class of an error, and its status."""
    for base in error.__mro__:
        if base in STATUSES:
            return STATUSES[base]
    return STATUSES[BrokenError]


def error_page(error: IsterError) -> Page:
    """Return the answer that tells of an error."""
    headers: tuple[Header, ...] = ()
    if isinstance(error, BusyError):
        headers = ((b"retry-after", str(RETRY_AFTER_S).encode()),)
    elif isinstance(error, UnauthenticatedError):
        # Who does not know a token is to hold none of the few connections.
        headers = ((b"www-authenticate", b"Bearer"), (b"connection", b"close"))
    return _page(status_of(type(error))[1], error, headers)


def foreign_page(error: ForeignSiteError) -> Page:
    """Return the answer to a request that is not meant for this broker, or not by its sender."""
    is_host = error.header == "host"
    status = HTTPStatus.MISDIRECTED_REQUEST if is_host else HTTPStatus.FORBIDDEN
    return _page(status, error, ((b"connection", b"close"),))


def refusal_page(error: RefusedError) -> Page:
    """Return the answer to a request that HTTP has a status for."""
    return _page(error.status, BadRequestError(error.reason), error.headers)


def _page(status: int, error: IsterError, headers: tuple[Header, ...]) -> Page:
    report = ErrorReport(
        code=error.code or status_of(type(error))[0],
        name=type(error).__name__,
        message=str(error),
        fields=error.fields(),
    )
    return Page(status, JSON, json.encode(ErrorBody(report)), headers)
