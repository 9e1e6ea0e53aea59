"""The HTTP API: from a request to an operation, and from its answer back.

Always true: what comes from outside reaches an operation only in the shape it asks for; a request
is answered within `ANSWER_S`; an error of ours costs its request, never the door.
"""

import asyncio
from functools import cache, cached_property
from http import HTTPStatus
from typing import Any, get_args
from urllib.parse import parse_qsl, unquote

import msgspec
import structlog

from ister.base.errors import (
    BadRequestError,
    InternalError,
    IsterError,
    RequestTimeoutError,
)
from ister.operations import OPERATIONS, Made, Operation
from ister.server.http.asgi import JSON, Page, Receive, Scope, header_of
from ister.server.http.bodies import Bodies
from ister.server.http.faults import RefusedError, error_page, refusal_page
from ister.server.http.openapi import document
from ister.server.http.routes import PREFIX, Routes
from ister.server.operations import Caller, Dispatcher
from ister.telemetry import Occasions

logger = structlog.get_logger("http")

OPENAPI_PATH = "/api/openapi.json"
ROUTES = Routes(OPERATIONS)

# Whoever asks by HTTP gives up about then; a disk that takes longer is in trouble.
ANSWER_S = 30.0
QUERY_PARAMETERS_MAX = 64
# Of a body, all that is not a text of its own, such as a payload or a definition. Taking so much
# apart takes 10 ms at most; 2 MiB of names, texts or lists would hold up the broker for 50 ms.
PARTS_BYTES_MAX = 64 * 1024


class Api:
    """Turns requests into operations, and their results into responses."""

    def __init__(self, dispatcher: Dispatcher, *, tokens: bool = False) -> None:
        self._dispatcher = dispatcher
        self._tokens = tokens
        self._bodies = Bodies()
        # Each kind of bug by itself: one that comes all the time must not hide another.
        self._told = Occasions(dispatcher.node.broker.clock.monotonic_ms)

    async def answer(self, scope: Scope, receive: Receive, caller: Caller) -> Page | None:
        """Return the answer to a request, `None` when its peer has left."""
        try:
            return await self._answer(scope, receive, caller)
        except RefusedError as error:
            return refusal_page(error)
        except IsterError as error:
            return error_page(error)
        except Exception as error:
            if times := self._told.times(f"http_request_failed {type(error).__name__}"):
                path = scope["path"][:200]
                logger.exception("http_request_failed", path=path, times=times)
            return error_page(InternalError(type(error).__name__))

    async def _answer(self, scope: Scope, receive: Receive, caller: Caller) -> Page | None:
        method = scope["method"]
        if scope["path"] == OPENAPI_PATH:
            _check_method(method, ["GET"])
            return _options(["GET"]) if method == "OPTIONS" else self._document
        segments = _segments(scope)
        found = ROUTES.find(segments) if segments is not None else None
        if found is None:
            reason = f"there is no {scope['path'][:200]}: see {OPENAPI_PATH}"
            raise RefusedError(HTTPStatus.NOT_FOUND, reason)
        routes, where = found
        _check_method(method, list(routes))
        if method == "OPTIONS":
            return _options(list(routes))
        route = routes["GET" if method == "HEAD" else method]
        path = _convert(where, route.where, "path") if route.where else None
        query = _convert(_query(scope), route.query or _Nothing, "query")
        body = None
        if route.body is not None:
            data = await self._bodies.read(scope, receive)
            if data is None:
                return None
            body = _decode(scope, data, route.body)
        return await self._run(route.bind(path, query, body), caller)

    async def _run(self, operation: Operation[Any], caller: Caller) -> Page:
        spec = operation.spec
        try:
            async with asyncio.timeout(ANSWER_S):
                answer = await self._dispatcher.run(operation, caller)
        except TimeoutError as error:
            if isinstance(error, IsterError):
                raise
            raise RequestTimeoutError(spec.name, ANSWER_S) from None
        status = HTTPStatus.OK
        if isinstance(answer, Made):
            status = HTTPStatus.CREATED if answer.is_new else HTTPStatus.OK
            answer = answer.value
        if spec.answer is None:
            return Page(HTTPStatus.NO_CONTENT, JSON, b"")
        return Page(status, JSON, msgspec.json.encode(spec.show(answer) if spec.show else answer))

    @cached_property
    def _document(self) -> Page:
        told = document(ROUTES.table, tokens=self._tokens)
        return Page(HTTPStatus.OK, JSON, msgspec.json.encode(told))


def _number(text: str) -> float | int:
    """Return a number with a point or an exponent. To JSON Schema 5.0 is an integer, as 5 is."""
    number = float(text)
    return int(number) if number.is_integer() else number


_QUOTE = ord('"')
_JSON = msgspec.json.Decoder(float_hook=_number)


class _Nothing(msgspec.Struct, forbid_unknown_fields=True):
    """The query of a route that has none."""


def _segments(scope: Scope) -> list[str] | None:
    """Return the parts of the path below the prefix, each decoded; `None` when it is not there.

    Decoded after it is split: a name may hold a slash that was sent as `%2F`.
    """
    raw: bytes = scope.get("raw_path") or scope["path"].encode()
    below = raw.decode("ascii", "replace").removeprefix(PREFIX)
    if len(below) == len(raw) or not below.startswith("/"):
        return None
    try:
        return [unquote(segment, errors="strict") for segment in below.split("/")[1:]]
    except UnicodeDecodeError:
        raise BadRequestError("the path is not UTF-8") from None


def _query(scope: Scope) -> dict[str, str]:
    try:
        pairs = parse_qsl(
            scope.get("query_string", b"").decode("ascii"),
            keep_blank_values=True,
            errors="strict",
            max_num_fields=QUERY_PARAMETERS_MAX,
        )
    except UnicodeDecodeError:
        raise BadRequestError("the query is not UTF-8") from None
    except ValueError:
        raise BadRequestError(f"the query has over {QUERY_PARAMETERS_MAX} parameters") from None
    found = dict(pairs)
    if len(found) != len(pairs):
        raise BadRequestError("a parameter is in the query twice")
    return found


def _convert(values: dict[str, str], shape: type, place: str) -> Any:
    try:
        return msgspec.convert(values, shape, strict=False)
    except msgspec.ValidationError as error:
        raise BadRequestError(f"{place}: {error}") from None


def _decode(scope: Scope, data: bytes, shape: type) -> Any:
    content_type = header_of(scope, b"content-type").partition(b";")[0].strip().lower()
    if not data and not content_type:
        # No body at all: fine where every field may be left out.
        data, content_type = b"{}", JSON.encode()
    packed = header_of(scope, b"content-encoding").lower() not in (b"", b"identity")
    if packed or content_type != JSON.encode():
        raise RefusedError(
            HTTPStatus.UNSUPPORTED_MEDIA_TYPE, f"send the body as {JSON}, not compressed"
        )
    try:
        if len(data) > PARTS_BYTES_MAX:
            data = _check_parts(data, shape)
        # Taken apart before it is compared with the shape that is asked for, so that numbers may be
        # written with a point.
        return msgspec.convert(_JSON.decode(data), shape)
    except msgspec.DecodeError as error:
        raise BadRequestError(f"body: {error}") from None
    except UnicodeDecodeError:
        # Not the library's own error.
        raise BadRequestError("body: text is not UTF-8") from None
    except RecursionError:
        raise BadRequestError("body: nested too deep") from None


def _check_parts(data: bytes, shape: Any) -> bytes:
    """Return a large body without fields that it repeats. Raises for one with too many parts."""
    fields = msgspec.structs.asdict(msgspec.json.decode(data, type=_outline(shape)))
    given = {name: raw for name, raw in fields.items() if raw is not msgspec.UNSET}
    texts = sum(len(raw) for raw in given.values() if memoryview(raw)[0] == _QUOTE)
    if sum(map(len, given.values())) - texts > PARTS_BYTES_MAX:
        raise BadRequestError(f"body: over {PARTS_BYTES_MAX} bytes besides top-level strings")
    return msgspec.json.encode(given)


@cache
def _outline(shape: Any) -> type[msgspec.Struct]:
    """Return a shape with the same fields, or those of all its choices, whatever is in them.

    What is in a field is passed over, which takes 1 to 5 ns a byte.
    """
    choices = get_args(shape) or (shape,)
    names = {field.encode_name for one in choices for field in msgspec.structs.fields(one)}
    names |= {one.__struct_config__.tag_field for one in choices} - {None}
    fields = [(name, msgspec.Raw | msgspec.UnsetType, msgspec.UNSET) for name in sorted(names)]
    return msgspec.defstruct("Outline", fields, forbid_unknown_fields=True)


def _allow(methods: list[str]) -> tuple[bytes, bytes]:
    more = ["HEAD"] if "GET" in methods else []
    return b"allow", ", ".join(sorted([*methods, *more, "OPTIONS"])).encode()


def _options(methods: list[str]) -> Page:
    return Page(HTTPStatus.NO_CONTENT, JSON, b"", (_allow(methods),))


def _check_method(method: str, methods: list[str]) -> None:
    if method == "OPTIONS" or method in methods or (method == "HEAD" and "GET" in methods):
        return
    allow = _allow(methods)
    raise RefusedError(
        HTTPStatus.METHOD_NOT_ALLOWED,
        f"method {method[:20]} is not among {allow[1].decode()}",
        allow,
    )
