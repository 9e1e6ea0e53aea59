"""Retries of a remote store, with a client that fails as it is told."""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import obstore.store
import pytest
from obstore.exceptions import (
    BaseError,
    GenericError,
    NotSupportedError,
    PermissionDeniedError,
    UnauthenticatedError,
)

from ister.base.errors import ObjectExistsError
from ister.objects.remote import (
    ATTEMPTS_MAX,
    CLIENT_OPTIONS,
    SMALL_BYTES,
    Buffer,
    RemoteStore,
    config_reason,
    failure_reason,
    option_value,
)


class FailingClient:
    """A store in memory; each `put` takes the next of `plan`: an error, before or after it."""

    def __init__(self, *plan: tuple[str, BaseError | None]) -> None:
        self.memory = obstore.store.MemoryStore()
        self.plan = list(plan)
        self.puts = 0

    def put(self, path: str, file: Buffer, *, mode: str) -> object:
        """Make an object, or fail."""
        self.puts += 1
        moment, error = self.plan.pop(0) if self.plan else ("never", None)
        if moment == "before" and error is not None:
            raise error
        result = self.memory.put(path, file, mode="create" if mode == "create" else "overwrite")
        if error is not None:
            raise error
        return result

    def get(self, path: str) -> Any:
        """Return an object."""
        return self.memory.get(path)

    def get_range(self, path: str, *, start: int, length: int) -> Any:
        """Return a part of an object."""
        return self.memory.get_range(path, start=start, length=length)

    def head(self, path: str) -> Mapping[str, Any]:
        """Return what is known of an object."""
        return dict(self.memory.head(path))

    def list(self, prefix: str) -> Iterable[Any]:
        """Return objects in groups."""
        return self.memory.list(prefix)

    def delete(self, paths: str) -> None:
        """Remove an object."""
        self.memory.delete(paths)


def store_over(client: FailingClient, waits: list[float] | None = None) -> RemoteStore:
    slept = [] if waits is None else waits
    return RemoteStore(
        "s3://tests", reads=client, small_writes=client, large_writes=client, sleep=slept.append
    )


def lost() -> GenericError:
    return GenericError("Generic S3 error: operation timed out\n\nDebug source:\nmany lines")


def test_a_put_is_tried_again_after_a_passing_error() -> None:
    client = FailingClient(("before", lost()), ("before", lost()))
    waits: list[float] = []
    store_over(client, waits).put("chunks/1", b"bytes")

    assert store_over(client).get("chunks/1") == b"bytes"
    assert client.puts == 3
    assert [0.05 <= waits[0] <= 0.1, 0.1 <= waits[1] <= 0.2] == [True, True]


def test_a_put_whose_answer_was_lost_finds_its_own_object() -> None:
    client = FailingClient(("after", lost()))
    store_over(client).put("chunks/1", b"bytes")

    assert store_over(client).get("chunks/1") == b"bytes"


def test_a_rival_that_came_while_an_answer_was_lost_is_noticed() -> None:
    client = FailingClient(("before", lost()))
    client.memory.put("chunks/1", b"rival", mode="create")

    with pytest.raises(ObjectExistsError):
        store_over(client).put("chunks/1", b"bytes")


def test_a_rival_with_the_same_bytes_is_noticed_at_the_first_attempt() -> None:
    client = FailingClient()
    client.memory.put("chunks/1", b"bytes", mode="create")

    with pytest.raises(ObjectExistsError):
        store_over(client).put("chunks/1", b"bytes")


def test_attempts_have_an_end() -> None:
    client = FailingClient(*[("before", lost())] * 100)
    waits: list[float] = []

    with pytest.raises(OSError, match=r"operation timed out.*chunks/1") as caught:
        store_over(client, waits).put("chunks/1", b"bytes")
    assert "Debug source" not in str(caught.value)
    assert client.puts == ATTEMPTS_MAX == len(waits) + 1
    assert sum(waits) < 2.0


@pytest.mark.parametrize("kind", [PermissionDeniedError, UnauthenticatedError])
def test_missing_rights_are_not_tried_again(kind: type[BaseError]) -> None:
    client = FailingClient(("before", kind("denied")))

    with pytest.raises(PermissionError, match="denied"):
        store_over(client).put("chunks/1", b"bytes")
    assert client.puts == 1


def test_a_store_that_cannot_is_a_storage_failure() -> None:
    client = FailingClient(("before", NotSupportedError("no conditional writes")))

    with pytest.raises(OSError, match="no conditional writes"):
        store_over(client).put("chunks/1", b"bytes")
    assert client.puts == 1


@pytest.mark.parametrize(("size_bytes", "large"), [(SMALL_BYTES, 0), (SMALL_BYTES + 1, 1)])
def test_large_objects_are_written_by_the_patient_client(size_bytes: int, large: int) -> None:
    small_client, large_client = FailingClient(), FailingClient()
    store = RemoteStore(
        "s3://tests", reads=small_client, small_writes=small_client, large_writes=large_client
    )
    store.put("segments/1", bytes(size_bytes))

    assert (small_client.puts, large_client.puts) == (1 - large, large)


def test_a_failed_read_is_a_storage_failure() -> None:
    class BrokenClient(FailingClient):
        def get_range(self, path: str, *, start: int, length: int) -> Any:
            raise lost()

    client = BrokenClient()
    client.memory.put("segments/1", b"bytes")

    with pytest.raises(OSError, match="timed out"):
        store_over(client).get_range("segments/1", 0, 5)


def test_every_option_of_the_client_is_one_of_the_library() -> None:
    # The type exists for type checkers alone, in a file beside the library.
    stub = Path(obstore.store.__file__).parent / "_store" / "_client.pyi"
    known = stub.read_text(encoding="utf-8")

    assert [name for name in CLIENT_OPTIONS if f"    {name}: " not in known] == []


def test_words_for_truth_become_truth() -> None:
    assert [option_value(text) for text in ("true", "False", "5s")] == [True, False, "5s"]


METADATA = "Generic S3 error: Error performing PUT http://169.254.169.254/latest/api/token: timeout"


@pytest.mark.parametrize(
    ("said", "environment", "told"),
    [
        (METADATA, {}, "no credentials: AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY are not set"),
        (
            METADATA,
            {"AWS_ACCESS_KEY_ID": "k"},
            "no credentials: AWS_SECRET_ACCESS_KEY is not set",
        ),
        (
            METADATA.replace("S3", "GCS"),
            {},
            "no credentials: GOOGLE_APPLICATION_CREDENTIALS is not set",
        ),
    ],
)
def test_a_failed_metadata_service_is_told_as_missing_variables(
    said: str, environment: dict[str, str], told: str
) -> None:
    reason = failure_reason(said, environment)

    assert reason.startswith(told)
    assert said in reason


def test_other_failures_are_told_as_they_are() -> None:
    both = {"AWS_ACCESS_KEY_ID": "k", "AWS_SECRET_ACCESS_KEY": "s"}

    assert failure_reason(METADATA, both) == METADATA
    assert failure_reason("Generic S3 error: timeout", {}) == "Generic S3 error: timeout"


def test_half_of_the_credentials_is_told_by_the_variable_that_is_missing() -> None:
    said = "Generic S3 error: Missing SecretAccessKey"

    assert config_reason(said) == "AWS_SECRET_ACCESS_KEY is not set"
    assert config_reason("Generic S3 error: odd") == "Generic S3 error: odd"
