"""One subject in memory: its versions, and those of their schemas that are in use.

Always true:
- the contents of a subject are never changed but replaced as a whole: a check in another thread
  sees one or the other;
- a schema is parsed once while it is in use, however many topics are bound to its subject.
"""

import threading
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass, field

from ister.base.errors import SchemaNotFoundError
from ister.registry.records import SubjectRecord, SubjectReport, SubjectVersion
from ister.schemas import Schema, SchemaType, Steps, parse_schema

# Versions that producers of one subject use at the same time, during a slow roll-out and more. A
# parsed schema with its validator takes about 20 times its definition.
PARSED_MAX = 16


@dataclass(frozen=True, slots=True)
class SubjectContents:
    """A subject as it was at one revision."""

    record: SubjectRecord
    revision: int
    versions: Mapping[int, SubjectVersion]

    @property
    def latest(self) -> int:
        """The number of the latest version."""
        return self.record.versions[-1]

    @property
    def definitions_bytes(self) -> int:
        """How long all definitions are together."""
        return sum(len(version.definition) for version in self.versions.values())

    def find(self, type: SchemaType, fingerprint: str) -> SubjectVersion | None:
        """Return the version that means the same, the latest if there are several."""
        for number in reversed(self.record.versions):
            version = self.versions[number]
            if version.fingerprint == fingerprint and version.type is type:
                return version
        return None

    def get(self, number: int) -> SubjectVersion:
        """Return a version, 0 for the latest. Raises `SchemaNotFoundError`."""
        version = self.versions.get(number or self.latest)
        if version is None:
            raise SchemaNotFoundError(self.record.subject, number)
        return version


@dataclass(slots=True)
class Subject:
    """One subject. Any thread may ask for its schemas; the rest is the event loop's."""

    contents: SubjectContents
    # Topics that are bound to it.
    topics: set[str] = field(default_factory=set)
    _parsed: OrderedDict[int, Schema] = field(default_factory=OrderedDict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def schema(self, version: SubjectVersion, steps: Steps | None = None) -> Schema:
        """Return the schema of a version, from any thread.

        Takes as long as parsing does when it is not in use yet. Raises `ExtraMissingError`, and
        `SchemaTooComplexError` when that takes more steps than there are.
        """
        schema = self.find_parsed(version.version)
        if schema is None:
            schema = parse_schema(version.type, version.definition, steps)
            self.keep(version.version, schema)
        return schema

    def find_parsed(self, number: int) -> Schema | None:
        """Return the schema of a version if it is in use."""
        with self._lock:
            schema = self._parsed.get(number)
            if schema is not None:
                self._parsed.move_to_end(number)
            return schema

    def keep(self, number: int, schema: Schema) -> None:
        """Have a schema at hand for checks; the least recently used one makes room."""
        with self._lock:
            self._parsed[number] = schema
            if len(self._parsed) > PARSED_MAX:
                self._parsed.popitem(last=False)

    def forget_schemas(self) -> None:
        """Let go of what was parsed: no topic is checked by it."""
        with self._lock:
            self._parsed.clear()

    def report(self) -> SubjectReport:
        """Tell about the subject."""
        record = self.contents.record
        return SubjectReport(
            subject=record.subject,
            schema_id=record.schema_id,
            type=record.type,
            latest_version=self.contents.latest,
            mode=record.mode,
            tags=self.contents.get(0).tags,
            versions=list(record.versions),
        )
