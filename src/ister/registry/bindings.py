"""Which topics are bound to which subjects, in memory, and their checks."""

from collections.abc import Callable, Collection
from dataclasses import dataclass

from ister.base import find_partition
from ister.base.errors import SchemaBindingNotFoundError, SchemaMismatchError
from ister.registry.binding_check import BindingCheck, Tally
from ister.registry.records import Binding
from ister.registry.subject import Subject
from ister.schemas import Policy


@dataclass(frozen=True, slots=True)
class Bound:
    """The binding of a topic, the revision it is at, and what it is bound to."""

    binding: Binding
    revision: int
    entry: Subject
    # None under the policy `none`.
    check: BindingCheck | None


class Bindings:
    """All bindings. A subject knows the topics that are bound to it."""

    def __init__(self, now_ms: Callable[[], int]) -> None:
        self._now_ms = now_ms
        self._bound: dict[str, Bound] = {}
        # What was counted outlives a change of the binding.
        self._tallies: dict[str, Tally] = {}

    def __len__(self) -> int:
        return len(self._bound)

    def find(self, topic: str) -> Bound | None:
        """Return what a topic itself is bound to, if it is."""
        return self._bound.get(topic)

    def get(self, topic: str) -> Bound:
        """Return what a topic, or the topic it is a partition of, is bound to."""
        bound = self._bound.get(topic)
        if bound is None and (partition := find_partition(topic)) is not None:
            bound = self._bound.get(partition[0])
        if bound is None:
            raise SchemaBindingNotFoundError(topic)
        return bound

    def find_check(self, topic: str) -> BindingCheck | None:
        """Return the check of a topic or a partition, if it has one."""
        try:
            return self.get(topic).check
        except SchemaBindingNotFoundError:
            return None

    def all(self) -> list[Binding]:
        """Return every binding, by topic."""
        return [bound.binding for _, bound in sorted(self._bound.items())]

    def tallies(self) -> dict[str, Tally]:
        """Return what was counted, by topic."""
        return dict(self._tallies)

    def set(self, binding: Binding, revision: int, entry: Subject) -> None:
        """Bind a topic, instead of what it was bound to."""
        topic = binding.topic
        bound = self._bound.get(topic)
        if bound is not None and bound.entry is not entry:
            release(bound)
        check = None
        if binding.policy is not Policy.NONE:
            tally = self._tallies.setdefault(topic, Tally())
            check = BindingCheck(binding, entry, tally, self._now_ms)
        self._bound[topic] = Bound(binding, revision, entry, check)
        entry.topics.add(topic)

    def drop(self, topic: str) -> None:
        """Unbind a topic, and forget what was counted of it."""
        bound = self._bound.pop(topic, None)
        if bound is not None:
            release(bound)
        self._tallies.pop(topic, None)

    def check_spares(self, entry: Subject, numbers: Collection[int]) -> None:
        """Raise `SchemaMismatchError` for a topic that cannot do without these versions."""
        remaining = [one for one in entry.contents.record.versions if one not in numbers]
        for topic in sorted(entry.topics):
            if not is_satisfiable(self._bound[topic].binding, remaining):
                raise SchemaMismatchError(topic, entry.contents.record.subject)


def release(bound: Bound) -> None:
    """Have a subject know that a topic is not bound to it any more."""
    bound.entry.topics.discard(bound.binding.topic)
    if not bound.entry.topics:
        bound.entry.forget_schemas()


def is_satisfiable(binding: Binding, versions: list[int]) -> bool:
    """Whether some message can follow a binding when these are the versions, in order."""
    if binding.version:
        return binding.version in versions
    return bool(versions) and versions[-1] >= binding.min_version
