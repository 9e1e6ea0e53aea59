"""The namespaces of a broker.

Always true:
- some are always there, in no journal;
- a new one is there at once, and taken back when the journal does not take it;
- one that is deleted takes no topics from then on, and is there until every journal has that.
"""

from collections.abc import Callable, Iterable, Sequence

from ister.base import parse_topic
from ister.base.errors import (
    BadNameError,
    IsterError,
    LimitReachedError,
    NamespaceExistsError,
    NamespaceNotEmptyError,
    NamespaceNotFoundError,
)
from ister.broker.scheduling import Done, after_all
from ister.broker.state import NamespaceCreated, NamespaceDeleted
from ister.broker.storage import Storage, Write


class Namespaces:
    """The namespaces of a broker. `find_use` says what one is in use by, empty for nothing."""

    def __init__(
        self,
        *,
        always: frozenset[str],
        namespaces_max: int,
        storages: Sequence[Storage],
        find_use: Callable[[str], str],
    ) -> None:
        self._always = always
        self._max = namespaces_max
        self._storages = storages
        self._find_use = find_use
        # Those of users: the limit is for them.
        self._own: set[str] = set()
        # On their way out, with everybody else who asked for that.
        self._going: dict[str, list[Done]] = {}

    def __contains__(self, namespace: str) -> bool:
        """Whether a namespace takes topics."""
        known = namespace in self._own or namespace in self._always
        return known and namespace not in self._going

    def names(self) -> list[str]:
        """Return the namespaces by name."""
        return sorted(self._own | self._always)

    def adopt(self, namespaces: Iterable[str]) -> None:
        """Take over those that a state knows."""
        self._own |= set(namespaces) - self._always

    def create(self, namespace: str, done: Done) -> None:
        """Make a namespace, or raise `NamespaceExistsError`."""
        try:
            parse_topic(f"/{namespace}/x")
        except BadNameError as error:
            reason = "a namespace holds letters, digits, '_' and '-', 252 at most"
            raise BadNameError(namespace[:40], reason) from error
        if namespace in self._own or namespace in self._always:
            raise NamespaceExistsError(namespace)
        # The default one counts as it always has.
        if len(self._own) + 1 >= self._max:
            raise LimitReachedError("namespaces_max", self._max)

        def on_done(error: IsterError | None) -> None:
            if error is not None:
                self._own.discard(namespace)
            done(error)

        if self._storages:
            self._storages[0].commit(Write(changes=[NamespaceCreated(namespace)]), on_done)
            self._own.add(namespace)
        else:
            self._own.add(namespace)
            done(None)

    def delete(self, namespace: str, done: Done) -> None:
        """Remove a namespace, or raise `NamespaceNotEmptyError` while it is in use."""
        if namespace in self._always:
            raise NamespaceNotEmptyError(namespace, "it is always there")
        if namespace not in self._own:
            raise NamespaceNotFoundError(namespace)
        if namespace in self._going:
            self._going[namespace].append(done)
            return
        use = self._find_use(namespace)
        if use:
            raise NamespaceNotEmptyError(namespace, use)
        for storage in self._storages:
            storage.committer.check()
        self._going[namespace] = [done]

        def on_done(error: IsterError | None) -> None:
            waiting = self._going.pop(namespace)
            if error is None:
                self._own.discard(namespace)
            for told in waiting:
                told(error)

        # Each of them may know it: it is told of a namespace with the first topic in it.
        each = after_all(len(self._storages), on_done)
        for storage in self._storages:
            storage.commit(Write(changes=[NamespaceDeleted(namespace)]), each)
