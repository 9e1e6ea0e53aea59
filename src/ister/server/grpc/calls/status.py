"""The status that a Danube client is answered with, for each of our errors.

Danube's clients repeat a call after UNAVAILABLE, DEADLINE_EXCEEDED and RESOURCE_EXHAUSTED, and
give every other code to the application. So these three are for what passes by itself.
"""

from enum import IntEnum

from ister.base import errors


class StatusCode(IntEnum):
    """How a call ended, as gRPC numbers it."""

    OK = 0
    CANCELLED = 1
    UNKNOWN = 2
    INVALID_ARGUMENT = 3
    DEADLINE_EXCEEDED = 4
    NOT_FOUND = 5
    ALREADY_EXISTS = 6
    PERMISSION_DENIED = 7
    RESOURCE_EXHAUSTED = 8
    FAILED_PRECONDITION = 9
    ABORTED = 10
    OUT_OF_RANGE = 11
    UNIMPLEMENTED = 12
    INTERNAL = 13
    UNAVAILABLE = 14
    DATA_LOSS = 15
    UNAUTHENTICATED = 16


# By base class, for what is not named below.
_BASES = (
    (errors.InvalidError, StatusCode.INVALID_ARGUMENT),
    (errors.DeniedError, StatusCode.PERMISSION_DENIED),
    (errors.NotFoundError, StatusCode.NOT_FOUND),
    (errors.ConflictError, StatusCode.FAILED_PRECONDITION),
    (errors.MovedError, StatusCode.UNAVAILABLE),
    (errors.BusyError, StatusCode.UNAVAILABLE),
    (errors.BrokenError, StatusCode.INTERNAL),
)

_LEAVES = {
    errors.UnauthenticatedError: StatusCode.UNAUTHENTICATED,
    # The other dispatch strategy than the topic's.
    errors.WrongKindError: StatusCode.FAILED_PRECONDITION,
    errors.ExtraMissingError: StatusCode.UNIMPLEMENTED,
    errors.TopicExistsError: StatusCode.ALREADY_EXISTS,
    errors.NamespaceExistsError: StatusCode.ALREADY_EXISTS,
    # What Danube answers to the second consumer of an exclusive subscription.
    errors.SubscriptionTakenError: StatusCode.PERMISSION_DENIED,
    errors.ConsumerNameTakenError: StatusCode.PERMISSION_DENIED,
    errors.SubscriptionMismatchError: StatusCode.PERMISSION_DENIED,
    errors.OffsetGoneError: StatusCode.OUT_OF_RANGE,
    errors.LimitReachedError: StatusCode.RESOURCE_EXHAUSTED,
    errors.RequestTimeoutError: StatusCode.DEADLINE_EXCEEDED,
    errors.CorruptedError: StatusCode.DATA_LOSS,
    errors.MessagesMissingError: StatusCode.DATA_LOSS,
}


def code_of(error: errors.IsterError) -> StatusCode:
    """Return the status that stands for `error`."""
    found = _LEAVES.get(type(error))
    if found is not None:
        return found
    return next((code for base, code in _BASES if isinstance(error, base)), StatusCode.INTERNAL)


class Refusal(Exception):  # noqa: N818 - no error of ours: what a Danube client is to be told
    """A status for a situation that only Danube's clients know."""

    def __init__(self, code: StatusCode, text: str) -> None:
        super().__init__(code, text)
        self.code = code
        self.text = text
