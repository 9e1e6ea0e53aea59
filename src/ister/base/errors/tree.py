"""The root of all errors, and the base classes.

The base class says what the caller should do; the leaf says what happened. Retries, HTTP and
gRPC status and the exit code of the command line follow from the base class alone.

Always true:
- a leaf has a number (`code`) that is never changed or reused; thousands name the base class;
- an error survives pickling, and a trip over the wire as number, fields and text;
- the leaves live in one module for each thousand, which `__init__.py` imports: whoever has one
  error has all of them, so that `leaves` and `from_wire` know every number.
"""

from typing import ClassVar

FieldValue = str | int | float | list[str] | None


class IsterError(Exception):
    """The root. `code` 0 means: a base class, raised for a number this version does not know."""

    code: ClassVar[int] = 0
    exit_code: ClassVar[int] = 70

    def fields(self) -> dict[str, FieldValue]:
        """Return the typed fields, as they travel over the wire."""
        # Not `__dataclass_fields__`, which names `code` as well.
        return {name: getattr(self, name) for name in getattr(self, "__match_args__", ())}

    def __reduce__(self) -> tuple[object, ...]:
        return (_restore, (type(self), self.fields(), self.args))


class InvalidError(IsterError):
    """Fix the request."""

    exit_code: ClassVar[int] = 64


class DeniedError(IsterError):
    """Fix the rights."""

    exit_code: ClassVar[int] = 77


class NotFoundError(IsterError):
    """It is not there: create it, or correct the name."""

    exit_code: ClassVar[int] = 66


class ConflictError(IsterError):
    """Somebody else was there: read again, then decide."""

    exit_code: ClassVar[int] = 73


class MovedError(IsterError):
    """Ask the new owner."""

    exit_code: ClassVar[int] = 75


class BusyError(IsterError):
    """Wait and repeat."""

    exit_code: ClassVar[int] = 75


class BrokenError(IsterError):
    """A bug or a broken machine: report it."""

    exit_code: ClassVar[int] = 70


_BASES: dict[int, type[IsterError]] = {
    1: InvalidError,
    2: DeniedError,
    3: NotFoundError,
    4: ConflictError,
    5: MovedError,
    6: BusyError,
    7: BrokenError,
}


def leaves() -> dict[int, type[IsterError]]:
    """Return every error with a number, by number."""
    found = {}
    pending = list(_BASES.values())
    while pending:
        cls = pending.pop()
        pending.extend(cls.__subclasses__())
        if cls.code:
            found[cls.code] = cls
    return dict(sorted(found.items()))


def from_wire(code: int, values: dict[str, FieldValue], text: str) -> IsterError:
    """Rebuild an error that a peer sent.

    A number or field set this version does not know becomes the base class with the peer's text,
    so that an older client still knows what to do about a newer broker's error.
    """
    cls = leaves().get(code)
    if cls is not None:
        try:
            error = cls(**values)
            str(error)  # Fields of a wrong type show when the text is made.
        except (TypeError, ValueError):
            pass
        else:
            return error
    return _BASES.get(code // 1000, BrokenError)(text)


def _restore(
    cls: type[IsterError], values: dict[str, FieldValue], args: tuple[object, ...]
) -> IsterError:
    return cls(**values) if values else cls(*args)
