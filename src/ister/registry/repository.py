"""The registry's facts: read as a whole or by subject, written as one change each.

Always true: every change of a subject, its versions and the bindings to it is one write, on the
condition that the subject is still at the revision it was read at. Two brokers that change the
same subject at once cannot both succeed. A binding to a subject, made or removed, also sets the
subject anew, so that it and a deletion cannot both succeed.
"""

from collections.abc import Iterable
from typing import NamedTuple

from ister.base.errors import CorruptedError, IsterError, RevisionMismatchError
from ister.base.limits import FACTS_PER_WRITE_MAX
from ister.metadata import Delete, Metadata, Put, facts_below
from ister.registry.records import (
    BINDINGS_PREFIX,
    ID_KEY,
    SUBJECTS_PREFIX,
    VERSIONS_PREFIX,
    Binding,
    SubjectRecord,
    SubjectVersion,
    binding_key,
    decode_id,
    decode_record,
    encode_id,
    encode_record,
    subject_key,
    version_key,
)
from ister.registry.subject import SubjectContents

# Versions are up to 1 MiB each, the others some hundred bytes.
VERSIONS_PER_PAGE = 32
RECORDS_PER_PAGE = 1_000


class KeptBinding(NamedTuple):
    """A binding, and the revision it is at."""

    binding: Binding
    revision: int


class SchemaRepository:
    """The facts of a registry in a store that others may write to as well."""

    def __init__(self, metadata: Metadata) -> None:
        self._metadata = metadata

    # Reading

    async def load_id(self) -> tuple[int, int]:
        """Return the highest id ever given, and the revision of that; zeros for none."""
        fact = await self._metadata.get(ID_KEY)
        return (decode_id(fact), fact.revision) if fact else (0, 0)

    async def load_subjects(self) -> list[SubjectContents]:
        """Return every subject. What is left of deleted ones is removed."""
        # Versions first: a subject is written with its first version, so one that is seen here
        # and whose subject is not there afterwards belongs to a subject that was deleted.
        found: dict[int, dict[int, SubjectVersion]] = {}
        async for fact in facts_below(self._metadata, VERSIONS_PREFIX, page=VERSIONS_PER_PAGE):
            version = decode_record(fact, SubjectVersion)
            found.setdefault(version.schema_id, {})[version.version] = version
        subjects = []
        async for fact in facts_below(self._metadata, SUBJECTS_PREFIX, page=RECORDS_PER_PAGE):
            record = decode_record(fact, SubjectRecord)
            subjects.append(
                await self._contents(record, fact.revision, found.pop(record.schema_id, {}))
            )
        for versions in found.values():
            await self.remove_versions(versions.values())
        return subjects

    async def load_revision(self, subject: str) -> int:
        """Return the revision a subject is at, 0 when it is not there."""
        fact = await self._metadata.get(subject_key(subject))
        return fact.revision if fact else 0

    async def load_subject(self, subject: str) -> SubjectContents | None:
        """Return one subject, if it is there."""
        fact = await self._metadata.get(subject_key(subject))
        if fact is None:
            return None
        return await self._contents(decode_record(fact, SubjectRecord), fact.revision, {})

    async def load_bindings(self) -> list[KeptBinding]:
        """Return every binding."""
        facts = facts_below(self._metadata, BINDINGS_PREFIX, page=RECORDS_PER_PAGE)
        return [KeptBinding(decode_record(fact, Binding), fact.revision) async for fact in facts]

    async def why_unbound(self, kept: KeptBinding) -> IsterError:
        """Return what to raise for a binding to a subject that is not there."""
        key = binding_key(kept.binding.topic)
        now = await self._metadata.get(key)
        if now is None or now.revision != kept.revision:
            return RevisionMismatchError(key)  # It was changed while we read.
        reason = f"schema {kept.binding.subject!r} is missing"
        return CorruptedError(f"fact {key!r} of the metadata", 0, reason)

    async def _contents(
        self, record: SubjectRecord, revision: int, known: dict[int, SubjectVersion]
    ) -> SubjectContents:
        """Return a subject with its versions; those that are not known yet are read."""
        versions = {}
        for number in record.versions:
            version = known.get(number)
            if version is None:
                version = await self._load_version(record, revision, number)
            versions[number] = version
        return SubjectContents(record, revision, versions)

    async def _load_version(
        self, record: SubjectRecord, revision: int, number: int
    ) -> SubjectVersion:
        fact = await self._metadata.get(version_key(record.schema_id, number))
        if fact is not None:
            return decode_record(fact, SubjectVersion)
        key = subject_key(record.subject)
        now = await self._metadata.get(key)
        if now is None or now.revision != revision:
            raise RevisionMismatchError(key)  # It was deleted while we read.
        raise CorruptedError(f"fact {key!r} of the metadata", 0, f"version {number} is missing")

    # Writing

    async def add_subject(
        self, version: SubjectVersion, record: SubjectRecord, *, id_revision: int
    ) -> int:
        """Write a new subject with its first version and a new id."""
        return await self._metadata.write(
            Put(ID_KEY, encode_id(record.schema_id), id_revision),
            Put(subject_key(record.subject), encode_record(record), 0),
            put_version(version),
        )

    async def add_version(
        self, version: SubjectVersion, record: SubjectRecord, *, revision: int
    ) -> int:
        """Write another version of a subject."""
        return await self._metadata.write(put_subject(record, revision), put_version(version))

    async def set_subject(self, record: SubjectRecord, *, revision: int) -> int:
        """Write what is kept of a subject beside its versions."""
        return await self._metadata.write(put_subject(record, revision))

    async def delete_version(self, record: SubjectRecord, number: int, *, revision: int) -> int:
        """Remove a version that `record` does not name any more."""
        return await self._metadata.write(
            put_subject(record, revision), Delete(version_key(record.schema_id, number))
        )

    async def delete_subject(self, record: SubjectRecord, *, revision: int) -> int:
        """Remove a subject. Its versions mean nothing after that: see `remove_versions`."""
        return await self._metadata.write(Delete(subject_key(record.subject), revision))

    async def remove_versions(self, versions: Iterable[SubjectVersion]) -> None:
        """Remove versions of subjects that are gone; the next start does what this leaves."""
        keys = [version_key(one.schema_id, one.version) for one in versions]
        for start in range(0, len(keys), FACTS_PER_WRITE_MAX):
            group = keys[start : start + FACTS_PER_WRITE_MAX]
            await self._metadata.write(*map(Delete, group))

    async def bind(
        self, binding: Binding, record: SubjectRecord, *, binding_revision: int, revision: int
    ) -> int:
        """Write the binding of a topic to a subject that is still there."""
        return await self._metadata.write(
            Put(binding_key(binding.topic), encode_record(binding), binding_revision),
            put_subject(record, revision),
        )

    async def unbind(
        self, topic: str, record: SubjectRecord, *, binding_revision: int, revision: int
    ) -> int:
        """Remove the binding of a topic to a subject."""
        return await self._metadata.write(
            Delete(binding_key(topic), binding_revision), put_subject(record, revision)
        )


def put_subject(record: SubjectRecord, revision: int) -> Put:
    """Return the change of a subject that was read at `revision`."""
    return Put(subject_key(record.subject), encode_record(record), revision)


def put_version(version: SubjectVersion) -> Put:
    """Return the change that adds a version, which cannot be there yet."""
    return Put(version_key(version.schema_id, version.version), encode_record(version), 0)
