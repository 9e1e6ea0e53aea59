"""Who asks, and what they are allowed."""

from dataclasses import dataclass

from ister.operations import Right


@dataclass(frozen=True, slots=True)
class Caller:
    """Who asks for something. The door has seen their token, if it asks for one."""

    # `native`, `http`, `grpc` or `admin`; empty: the broker itself.
    door: str = ""
    # Of the token; empty where nobody is asked for one.
    name: str = ""
    address: str = ""


INSIDE = Caller()


class Policy:
    """Decides what a caller may do: as yet, everything."""

    def check(self, caller: Caller, right: Right, resource: str) -> None:
        """Raise `DeniedError` unless `caller` has `right` on a topic, subject or namespace."""
