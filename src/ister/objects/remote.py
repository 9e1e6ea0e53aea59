"""Object stores over the network, through `obstore`: S3, Google Cloud Storage, Azure Blob.

Always true:
- `put` makes an object once: of all writers of one name, in any process, one succeeds;
- what `obstore` raises never passes: storage failures are `OSError`s, as with files;
- every call ends: attempts and time are bounded.

A write whose answer is lost may have happened. The next attempt then finds an object; if it has
the very bytes, it is our own. The first attempt knows no such doubt, so a rival that writes the
same bytes is noticed as long as nothing is retried.

S3 answers a conditional write with 412 when the object exists, and with 409 when another request
for the same name is under way: then it asks for a repetition. `obstore` raises the same error for
both, so "exists" is believed only once the object has been read.
"""

import errno
import os
import random
import re
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import timedelta
from typing import Any, Protocol, TypeVar, cast

import obstore.store
from obstore.exceptions import (
    AlreadyExistsError,
    BaseError,
    GenericError,
    JoinError,
    PermissionDeniedError,
    PreconditionError,
    UnauthenticatedError,
)

from ister.base import hide_secrets
from ister.base.errors import ConfigError, ObjectExistsError

Buffer = bytes | bytearray | memoryview

# With waits of 0.1, 0.2, 0.4 and 0.8 s between them: enough for a node that restarts behind a
# balancer, and short enough that producers learn of a broken store while they still wait.
ATTEMPTS_MAX = 5
WAIT_S = 0.1
WAIT_S_MAX = 3.0
# Reads are retried by `obstore` itself, within this time.
READS_RETRIED_S = 20.0
# A journal chunk must fail while producers still wait. A segment of 128 MiB gets the time that a
# slow line of 1 MiB/s needs.
SMALL_BYTES = 8 * 1024 * 1024
SMALL_TIMEOUT_S = 15
LARGE_TIMEOUT_S = 180
CONNECT_TIMEOUT_S = 5

# The services that give a machine in a cloud its credentials: asked when nothing else has any.
_METADATA_SERVICE = re.compile(r"169\.254\.169\.254|169\.254\.170\.2|metadata\.google\.internal")
# By the name that `obstore` gives a kind of store in its errors.
_CREDENTIALS = {
    "S3": ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"),
    "GCS": ("GOOGLE_APPLICATION_CREDENTIALS",),
    "MicrosoftAzure": ("AZURE_STORAGE_ACCOUNT_NAME", "AZURE_STORAGE_ACCOUNT_KEY"),
}
# What `obstore` says of a setting that is missing, and its variable.
_MISSING = {
    "Missing AccessKeyId": "AWS_ACCESS_KEY_ID",
    "Missing SecretAccessKey": "AWS_SECRET_ACCESS_KEY",
    "Account must be specified": "AZURE_STORAGE_ACCOUNT_NAME",
}

# Not the generator that all modules share: an application may have seeded that.
_own_random = random.Random()

# Options that are for the HTTP client; everything else is for the kind of store.
CLIENT_OPTIONS = frozenset(
    {
        "allow_http",
        "allow_invalid_certificates",
        "connect_timeout",
        "pool_idle_timeout",
        "pool_max_idle_per_host",
        "proxy_ca_certificate",
        "proxy_excludes",
        "proxy_url",
        "root_certificate",
        "timeout",
        "user_agent",
    }
)

_R = TypeVar("_R")


class StoreClient(Protocol):
    """What is used of a store of `obstore`."""

    def put(self, path: str, file: Buffer, *, mode: str) -> object:
        """Make an object."""

    def get(self, path: str) -> Any:
        """Return an object, to be read with `bytes()`."""

    def get_range(self, path: str, *, start: int, length: int) -> Any:
        """Return a part of an object."""

    def head(self, path: str) -> Mapping[str, Any]:
        """Return what is known of an object."""

    def list(self, prefix: str) -> Iterable[Any]:
        """Return objects in groups."""

    def delete(self, paths: str) -> None:
        """Remove an object."""


class RemoteStore:
    """One bucket, or a folder in it. Any threads may share it."""

    def __init__(
        self,
        url: str,
        *,
        reads: StoreClient,
        small_writes: StoreClient,
        large_writes: StoreClient,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self.url = url
        self._reads = reads
        self._small_writes = small_writes
        self._large_writes = large_writes
        self._sleep = sleep

    def put(self, name: str, data: Buffer) -> None:
        """Make an object, durably, or raise `ObjectExistsError` with the other one untouched.

        After an `OSError` the object may be there or not.
        """
        client = self._small_writes if len(data) <= SMALL_BYTES else self._large_writes
        doubt: OSError | None = None
        for attempt in range(ATTEMPTS_MAX):
            if attempt:
                # Jitter, so that brokers that failed together do not come back together.
                wait_s = min(WAIT_S * 2 ** (attempt - 1), WAIT_S_MAX)
                self._sleep(wait_s * _own_random.uniform(0.5, 1.0))
            try:
                client.put(name, data, mode="create")
                return
            except (AlreadyExistsError, PreconditionError) as error:
                found = self._find(name)
                if found is None:
                    doubt = storage_failure(error, name)
                elif doubt is not None and found == data:
                    return
                else:
                    raise ObjectExistsError(name) from None
            except (GenericError, JoinError) as error:
                doubt = storage_failure(error, name)
            except BaseError as error:
                raise storage_failure(error, name) from error
        assert doubt is not None
        raise doubt

    def get(self, name: str) -> bytes:
        """Return an object, or raise `FileNotFoundError`."""
        return attempted(name, lambda: bytes(self._reads.get(name).bytes()))

    def get_range(self, name: str, position: int, size_bytes: int) -> bytes:
        """Return a part of an object; fewer bytes than asked for only at its end."""
        if not size_bytes:
            return b""
        try:
            return attempted(
                name, lambda: bytes(self._reads.get_range(name, start=position, length=size_bytes))
            )
        except OSError:
            # Stores refuse a range behind the end, each in its own words.
            if position < self.size(name):
                raise
            return b""

    def size(self, name: str) -> int:
        """Return the size of an object, or raise `FileNotFoundError`."""
        return attempted(name, lambda: int(self._reads.head(name)["size"]))

    def names(self, prefix: str) -> list[str]:
        """Return the names that start with `prefix`, which ends with `/`, sorted."""
        return attempted(
            prefix,
            lambda: sorted(one["path"] for group in self._reads.list(prefix) for one in group),
        )

    def remove(self, name: str) -> None:
        """Remove an object. It may be missing."""
        try:
            attempted(name, lambda: self._reads.delete(name))
        except FileNotFoundError:
            return

    def close(self) -> None:
        """Do nothing: connections end by themselves."""

    def _find(self, name: str) -> bytes | None:
        try:
            return self.get(name)
        except FileNotFoundError:
            return None


def open_remote(url: str, options: Mapping[str, str]) -> RemoteStore:
    """Return the store at `url`. Nothing is asked of it yet; bad options are a `ConfigError`."""
    config = {key: value for key, value in options.items() if key not in CLIENT_OPTIONS}
    client: dict[str, Any] = {"connect_timeout": timedelta(seconds=CONNECT_TIMEOUT_S)}
    if any(str(value).startswith("http://") for value in config.values()):
        client["allow_http"] = True
    client |= {key: option_value(value) for key, value in options.items() if key in CLIENT_OPTIONS}

    def connect(timeout_s: int, retries: int) -> StoreClient:
        own = {"timeout": timedelta(seconds=timeout_s)} | client
        return make_client(url, config, own, retries)

    return RemoteStore(
        url,
        reads=connect(LARGE_TIMEOUT_S, ATTEMPTS_MAX - 1),
        # A retry inside `obstore` could not be told from a rival.
        small_writes=connect(SMALL_TIMEOUT_S, 0),
        large_writes=connect(LARGE_TIMEOUT_S, 0),
    )


def make_client(
    url: str, config: Mapping[str, str], client: Mapping[str, Any], retries: int
) -> StoreClient:
    """Return one connection pool with its timeouts and retries."""
    retry = {
        "max_retries": retries,
        "retry_timeout": timedelta(seconds=READS_RETRIED_S),
        "backoff": {
            "init_backoff": timedelta(seconds=WAIT_S),
            "max_backoff": timedelta(seconds=WAIT_S_MAX),
            "base": 2,
        },
    }
    from_url = cast("Callable[..., StoreClient]", obstore.store.from_url)
    try:
        return from_url(url, config=config, client_options=client, retry_config=retry)
    except (BaseError, ValueError, TypeError) as error:
        raise ConfigError([f"store {url}: {config_reason(first_line(error))}"]) from None


def option_value(text: str) -> str | bool:
    return {"true": True, "false": False}.get(text.lower(), text)


def attempted(name: str, call: Callable[[], _R]) -> _R:
    """Return what `call` does, with the store's errors turned into `OSError`."""
    try:
        return call()
    except BaseError as error:
        raise storage_failure(error, name) from error


def storage_failure(error: BaseError, name: str) -> OSError:
    reason = failure_reason(first_line(error), os.environ)
    if isinstance(error, PermissionDeniedError | UnauthenticatedError):
        return PermissionError(errno.EACCES, reason, name)
    return OSError(errno.EIO, reason, name)


def failure_reason(said: str, environment: Mapping[str, str]) -> str:
    """Return what `obstore` says of a failure, with the variables that are missing.

    Without credentials it asks the metadata service of a cloud, and reports only that this failed.
    """
    if not _METADATA_SERVICE.search(said):
        return said
    kind = next((kind for kind in _CREDENTIALS if f"Generic {kind} error" in said), "S3")
    missing = [name for name in _CREDENTIALS[kind] if not environment.get(name)]
    if not missing:
        return said
    return (
        f"no credentials: {not_set(missing)}, and the metadata service of a cloud, which "
        f"has those of a machine role, does not give any ({said})"
    )


def config_reason(said: str) -> str:
    """Return what `obstore` says of its settings, with the variable that is missing."""
    missing = [name for words, name in _MISSING.items() if words in said]
    return not_set(missing) if missing else said


def not_set(names: Sequence[str]) -> str:
    return f"{' and '.join(names)} {'is' if len(names) == 1 else 'are'} not set"


def first_line(error: Exception) -> str:
    # What follows is for people who debug `obstore`.
    return hide_secrets(str(error).strip().partition("\n")[0])
