"""The OpenAPI document of the API, from its table of routes."""

from collections.abc import Sequence
from importlib.metadata import version
from inspect import cleandoc
from typing import Any

import msgspec

from ister.base.errors import BadRequestError, DeniedError, IsterError, UnauthenticatedError
from ister.server.http.asgi import JSON
from ister.server.http.faults import RETRY_AFTER_S, ErrorBody, status_of
from ister.server.http.routes import PREFIX, Route

# The document is JSON as it goes out; only this file knows its shape.
Json = dict[str, Any]

_REF = "#/components/schemas/{name}"

# What HTTP itself may answer to every request, in the words of the document.
_REFUSALS = {"405": "The path has other methods; `Allow` lists them."}
_BODY_REFUSALS = {
    "408": "The body came too slowly.",
    "413": "The body is too large.",
    "415": f"The body is not {JSON}.",
}
_ALWAYS = {
    "500": "A bug, or a broken machine.",
    "503": "A limit is reached, storage fails, or it took too long: wait and repeat.",
}

_ABOUT = """
Administration of an Ister broker.

A topic `/default/orders` is `/namespaces/default/topics/orders` here. A list gives `limit` rows
after `after`; `next` in the answer is the `after` of the next page, empty at the end. Every answer
that is no success has an `ErrorBody`; its `code` never changes its meaning.
"""


def document(routes: Sequence[Route], *, tokens: bool = False) -> Json:
    """Return the document; with `tokens`, of a broker that asks for them."""
    schemas = _Schemas(routes)
    paths: dict[str, Json] = {}
    for route in routes:
        spec = route.operation.spec
        paths.setdefault(PREFIX + spec.path, {})[spec.method.lower()] = _operation(route, schemas)
    told: Json = {
        "openapi": "3.1.0",
        "info": {"title": "Ister", "version": version("ister"), "description": cleandoc(_ABOUT)},
        "servers": [{"url": "/"}],
        "tags": [
            {"name": tag} for tag in dict.fromkeys(route.operation.spec.tag for route in routes)
        ],
        "paths": paths,
        "components": {"schemas": schemas.shared},
    }
    if tokens:
        _ask_for_tokens(told, schemas)
    return told


def _ask_for_tokens(told: Json, schemas: "_Schemas") -> None:
    told["components"]["securitySchemes"] = {"token": {"type": "http", "scheme": "bearer"}}
    told["security"] = [{"token": []}]
    refusal = {
        "description": _explained(UnauthenticatedError),
        "headers": {"WWW-Authenticate": _header("string", "Bearer")},
        "content": {JSON: {"schema": schemas.of(ErrorBody)}},
    }
    for operations in told["paths"].values():
        for operation in operations.values():
            operation["responses"]["401"] = refusal


class _Schemas:
    """JSON Schemas of everything the routes take and give."""

    def __init__(self, routes: Sequence[Route]) -> None:
        loose = [t for r in routes for t in (r.where, r.query) if t is not None]
        answers = [r.operation.spec.answer for r in routes]
        bound = [t for t in (*(r.body for r in routes), *answers) if t is not None]
        kinds = list(dict.fromkeys([*loose, *bound, ErrorBody]))
        found, self.shared = msgspec.json.schema_components(kinds, ref_template=_REF)
        _translate_patterns(self.shared)
        self._by_kind = dict(zip(kinds, found, strict=True))
        # Shapes of paths and queries are told parameter by parameter.
        self._loose = {name: self.shared.pop(name) for name in {kind.__name__ for kind in loose}}

    def of(self, kind: type) -> Json:
        """Return the schema of a body or an answer."""
        found: Json = self._by_kind[kind]
        return found

    def parameters(self, kind: type | None, place: str) -> list[Json]:
        """Return the parameters that a shape of a path or query stands for."""
        if kind is None:
            return []
        schema = self._loose[kind.__name__]
        rows = []
        for name, own in schema["properties"].items():
            told = {key: value for key, value in own.items() if key != "description"}
            row = {"name": name, "in": place, "schema": told}
            row["required"] = name in schema.get("required", ())
            if "description" in own:
                row["description"] = own["description"]
            rows.append(row)
        return rows


def _operation(route: Route, schemas: _Schemas) -> Json:
    spec = route.operation.spec
    summary, _, more = cleandoc(route.operation.__doc__ or "").partition("\n\n")
    told: Json = {
        "operationId": spec.name,
        "tags": [spec.tag],
        "summary": " ".join(summary.split()),
        "parameters": [
            *schemas.parameters(route.where, "path"),
            *schemas.parameters(route.query, "query"),
        ],
        "responses": _responses(route, schemas),
    }
    if more:
        told["description"] = more
    if route.body is not None:
        told["requestBody"] = {
            "required": _is_required(route.body),
            "content": {JSON: {"schema": schemas.of(route.body)}},
        }
    return told


def _responses(route: Route, schemas: _Schemas) -> Json:
    told: Json = {}
    spec = route.operation.spec
    if spec.answer is None:
        told["204"] = {"description": "Done."}
    else:
        content = {JSON: {"schema": schemas.of(spec.answer)}}
        told["200"] = {"description": "As it was." if spec.makes else "Done.", "content": content}
        if spec.makes:
            told["201"] = {"description": "Made.", "content": content}
    problems = dict(_REFUSALS)
    if route.body is not None:
        problems |= _BODY_REFUSALS
    for status, errors in _by_status(route).items():
        problems[status] = " ".join(_explained(error) for error in errors)
    problems |= _ALWAYS
    for status, text in sorted(problems.items()):
        told[status] = {
            "description": text,
            "content": {JSON: {"schema": schemas.of(ErrorBody)}},
        }
    told["405"]["headers"] = {"Allow": _header("string", "The methods of this path.")}
    told["503"]["headers"] = {
        "Retry-After": _header("integer", f"Seconds to wait, as a rule {RETRY_AFTER_S}.")
    }
    return told


def _by_status(route: Route) -> dict[str, list[type[IsterError]]]:
    found: dict[str, list[type[IsterError]]] = {}
    asked = route.where is not None or route.query is not None or route.body is not None
    always: list[type[IsterError]] = [BadRequestError] if asked else []
    if route.operation.spec.method != "GET":
        always.append(DeniedError)
    for error in dict.fromkeys([*always, *route.operation.spec.errors]):
        found.setdefault(str(status_of(error)[1]), []).append(error)
    return found


def _explained(error: type[IsterError]) -> str:
    if error is DeniedError:
        return "The request comes from a page of another site."
    return f"{error.code} {error.__name__}: {cleandoc(error.__doc__ or '').splitlines()[0]}"


def _is_required(body: Any) -> bool:
    """Whether a body may not be left out; where every field may, so may all of it."""
    try:
        msgspec.json.decode(b"{}", type=body)
    except msgspec.ValidationError:
        return True
    return False


def _translate_patterns(schema: Any) -> None:
    """Write patterns as JSON Schema reads them: there `\\w` has no letters beyond ASCII."""
    if isinstance(schema, list):
        for part in schema:
            _translate_patterns(part)
    elif isinstance(schema, dict):
        if isinstance(schema.get("pattern"), str):
            schema["pattern"] = schema["pattern"].replace(r"\w", r"\p{L}\p{N}_")
        for part in schema.values():
            _translate_patterns(part)


def _header(kind: str, text: str) -> Json:
    return {"description": text, "schema": {"type": kind}}
