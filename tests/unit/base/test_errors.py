"""Every error survives pickling and a trip over the wire, and says what to do."""

import pickle
from importlib import import_module
from pkgutil import iter_modules

import pytest

from ister.base import errors
from ister.base.errors import (
    BadNameError,
    BrokenError,
    BusyError,
    ConfigError,
    ConflictError,
    DeniedError,
    FieldValue,
    InvalidError,
    IsterError,
    MovedError,
    NotFoundError,
    RequestTimeoutError,
    from_wire,
    leaves,
)

LEAVES = list(leaves().values())


def test_every_leaf_in_a_module_of_errors_is_exported() -> None:
    modules = [import_module(f"{errors.__name__}.{m.name}") for m in iter_modules(errors.__path__)]
    found = {
        name
        for module in modules
        for name, thing in vars(module).items()
        if isinstance(thing, type) and issubclass(thing, IsterError)
    }

    assert (
        found
        == {n for n in errors.__all__ if n.endswith("Error")}
        == found | {cls.__name__ for cls in LEAVES}
    )


def sample(cls: type[IsterError]) -> IsterError:
    """Return an error of `cls` with a value of the right type in every field."""
    samples: dict[object, FieldValue] = {str: "a word", int: 7, float: 1.5}
    values: dict[str, FieldValue] = {}
    for name in getattr(cls, "__match_args__", ()):
        values[name] = samples.get(cls.__annotations__[name], ["one", "two"])
    return cls(**values)


@pytest.mark.parametrize("cls", LEAVES)
def test_an_error_survives_pickling(cls: type[IsterError]) -> None:
    error = sample(cls)
    again = pickle.loads(pickle.dumps(error))

    assert (type(again), again.fields(), str(again)) == (cls, error.fields(), str(error))


@pytest.mark.parametrize("cls", LEAVES)
def test_an_error_survives_the_wire(cls: type[IsterError]) -> None:
    error = sample(cls)
    again = from_wire(error.code, error.fields(), str(error))

    assert (type(again), again.fields(), str(again)) == (cls, error.fields(), str(error))


@pytest.mark.parametrize("cls", LEAVES)
def test_the_thousands_of_a_number_name_the_base_class(cls: type[IsterError]) -> None:
    assert issubclass(cls, type(from_wire(cls.code // 1000 * 1000, {}, "")))


@pytest.mark.parametrize("cls", LEAVES)
def test_fields_are_the_arguments_and_nothing_else(cls: type[IsterError]) -> None:
    assert "code" not in sample(cls).fields()


@pytest.mark.parametrize("cls", LEAVES)
def test_a_text_is_lower_case_without_a_full_stop(cls: type[IsterError]) -> None:
    text = str(sample(cls))

    assert (text[0].islower() or text[0].isdigit(), text.endswith(".")) == (True, False)


@pytest.mark.parametrize(
    ("code", "base"),
    [
        (1999, InvalidError),
        (2999, DeniedError),
        (3999, NotFoundError),
        (4999, ConflictError),
        (5999, MovedError),
        (6999, BusyError),
        (7999, BrokenError),
        (0, BrokenError),
        (8000, BrokenError),
        (-1, BrokenError),
        (2**63, BrokenError),
    ],
)
def test_an_unknown_number_becomes_its_base_class_with_the_peers_text(
    code: int, base: type[IsterError]
) -> None:
    error = from_wire(code, {"anything": 1}, "the text")

    assert (type(error), str(error)) == (base, "the text")


@pytest.mark.parametrize(
    "values",
    [{}, {"name": "a"}, {"name": "a", "reason": "b", "more": 1}],
    ids=["none", "too few", "too many"],
)
def test_unknown_fields_make_the_base_class(values: dict[str, FieldValue]) -> None:
    assert type(from_wire(BadNameError.code, values, "the text")) is InvalidError


@pytest.mark.parametrize(
    ("code", "values"),
    [
        (ConfigError.code, {"mistakes": 5}),
        (RequestTimeoutError.code, {"what": "x", "timeout_s": "soon"}),
    ],
)
def test_fields_of_a_wrong_type_make_the_base_class(
    code: int, values: dict[str, FieldValue]
) -> None:
    assert str(from_wire(code, values, "the text")) == "the text"


def test_a_base_class_with_a_text_survives_pickling() -> None:
    again = pickle.loads(pickle.dumps(BusyError("later")))

    assert (type(again), str(again)) == (BusyError, "later")


def test_a_timeout_is_also_the_timeout_of_python() -> None:
    assert issubclass(RequestTimeoutError, TimeoutError)


@pytest.mark.parametrize(
    ("until_ms", "told"),
    [
        (1_700_000_000_123, "at 2023-11-14T22:13:20.123Z"),
        (2**62, f"at {2**62} ms since 1970"),
        (-(2**62), f"at {-(2**62)} ms since 1970"),
    ],
)
def test_the_end_of_a_lease_is_told_as_a_time(until_ms: int, told: str) -> None:
    assert str(errors.MessageLeasedError("a", "w", until_ms)).endswith(told)
