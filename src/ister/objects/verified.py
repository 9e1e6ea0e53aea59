"""An object store that is verified before the first write."""

import threading
from typing import TYPE_CHECKING

from ister.objects.folder import LocalStore
from ister.objects.opening import verify_store

if TYPE_CHECKING:
    from ister.objects.remote import RemoteStore

Buffer = bytes | bytearray | memoryview


class VerifiedStore:
    """An object store that is not written to until `verify_store` has passed. It is thread-safe.

    A broker can start while the store does not answer: then the first `put` verifies it. Reads and
    removals do not depend on what is verified, and never wait for it.
    """

    def __init__(self, store: "LocalStore | RemoteStore") -> None:
        self.url = store.url
        self._store = store
        self._lock = threading.Lock()
        self._verified = False

    def verify(self) -> None:
        """Verify the store, once. Raises the errors of `verify_store`."""
        with self._lock:
            if not self._verified:
                verify_store(self._store)
                self._verified = True

    def put(self, name: str, data: Buffer) -> None:
        """Verify the store, then create an object. Raises the errors of both."""
        self.verify()
        self._store.put(name, data)

    def get(self, name: str) -> bytes:
        """Return an object, or raise `FileNotFoundError`."""
        return self._store.get(name)

    def get_range(self, name: str, position: int, size_bytes: int) -> bytes:
        """Return a part of an object; fewer than `size_bytes` only at its end."""
        return self._store.get_range(name, position, size_bytes)

    def size(self, name: str) -> int:
        """Return the size of an object, or raise `FileNotFoundError`."""
        return self._store.size(name)

    def names(self, prefix: str) -> list[str]:
        """Return the names that start with `prefix`, which ends with `/`, sorted."""
        return self._store.names(prefix)

    def remove(self, name: str) -> None:
        """Remove an object, if it exists."""
        self._store.remove(name)
