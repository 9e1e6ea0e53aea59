"""How errors are told over HTTP."""

from dataclasses import fields
from typing import Any

import msgspec
import pytest

from ister.base.errors import (
    BusyError,
    DeniedError,
    IsterError,
    LimitReachedError,
    TopicNotFoundError,
    UnauthenticatedError,
    from_wire,
    leaves,
)
from ister.server.http.faults import error_page

STATUS_BY_THOUSAND = {1: 400, 2: 403, 3: 404, 4: 409, 5: 421, 6: 503, 7: 500}
# What makes HTTP's clients ask for a token.
STATUS_OF_ITS_OWN: dict[type[IsterError], int] = {UnauthenticatedError: 401}


def example(cls: type[IsterError]) -> IsterError:
    """Return an error of that class with some values in its fields."""
    made: dict[str, Any] = {}
    for field in fields(cls):  # type: ignore[arg-type]
        kind = str(field.type)
        if "list" in kind:
            made[field.name] = ["x"]
        elif "float" in kind:
            made[field.name] = 1.5
        elif "int" in kind:
            made[field.name] = 1
        else:
            made[field.name] = "x"
    return cls(**made)


@pytest.mark.parametrize("cls", leaves().values(), ids=lambda cls: cls.__name__)
def test_every_error_has_the_status_of_its_base_class_and_can_be_rebuilt(
    cls: type[IsterError],
) -> None:
    error = example(cls)

    page = error_page(error)

    assert page.status == STATUS_OF_ITS_OWN.get(cls, STATUS_BY_THOUSAND[cls.code // 1000])
    told = msgspec.json.decode(page.body)["error"]
    again = from_wire(told["code"], told["fields"], told["message"])
    assert type(again) is cls
    assert again.fields() == error.fields()


def test_an_error_is_told_with_number_name_text_and_fields() -> None:
    page = error_page(TopicNotFoundError("/default/orders"))

    assert page.status == 404
    assert page.content_type == "application/json"
    assert msgspec.json.decode(page.body) == {
        "error": {
            "code": 3001,
            "name": "TopicNotFoundError",
            "message": str(TopicNotFoundError("/default/orders")),
            "fields": {"topic": "/default/orders"},
        }
    }


def test_an_error_without_a_number_has_that_of_its_base_class() -> None:
    told = msgspec.json.decode(error_page(DeniedError("no")).body)["error"]

    assert told == {"code": 2000, "name": "DeniedError", "message": "no", "fields": {}}
    assert type(from_wire(told["code"], {}, told["message"])) is DeniedError


@pytest.mark.parametrize("error", [LimitReachedError("topics_max", 1), BusyError("wait")])
def test_whoever_should_wait_is_told_how_long(error: IsterError) -> None:
    assert (b"retry-after", b"1") in error_page(error).headers


def test_whoever_has_no_token_is_told_to_bring_one() -> None:
    page = error_page(UnauthenticatedError("no token was given"))

    assert page.status == 401
    assert (b"www-authenticate", b"Bearer") in page.headers
