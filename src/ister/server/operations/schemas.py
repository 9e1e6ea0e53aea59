"""Schemas: subjects with their versions, and which topic is bound to which subject."""

from typing import TYPE_CHECKING

from ister.base import SchemaBinding, SchemaSubject, SchemaVersion
from ister.base.limits import LISTING_BYTES
from ister.operations import (
    PAGE_MAX,
    BindingPage,
    BindTopic,
    ChangeSubject,
    CheckSchema,
    Compatibility,
    DeleteSubject,
    DeleteVersion,
    DescribeBinding,
    DescribeSchemaId,
    DescribeSubject,
    DescribeVersion,
    ListBindings,
    ListSubjects,
    ListVersions,
    Made,
    RegisteredSchema,
    RegisterSchema,
    SubjectPage,
    UnbindTopic,
    VersionPage,
)
from ister.server.operations.node import Node

if TYPE_CHECKING:
    from ister.registry import Binding, SubjectReport, SubjectVersion

# What a row of a listing has beside its texts.
ROW_BYTES = 256


# Subjects


def list_subjects(node: Node, asked: ListSubjects) -> SubjectPage:
    """Return as many subjects as fit into a page."""
    limit = max(1, min(asked.limit, PAGE_MAX))
    # One more tells whether there is a next page.
    found = node.registry.subjects(after=asked.after, limit=limit + 1)
    page = SubjectPage(rows=[])
    size_bytes = 0
    for one in found:
        size_bytes += ROW_BYTES + _size_bytes(one.subject, *one.tags) + 5 * len(one.versions)
        if page.rows and (len(page.rows) == limit or size_bytes > LISTING_BYTES):
            page.next = page.rows[-1].subject
            break
        page.rows.append(_subject(one))
    return page


def describe_subject(node: Node, asked: DescribeSubject | ChangeSubject) -> SchemaSubject:
    """Return one subject."""
    return _subject(node.registry.subject(asked.subject))


async def change_subject(node: Node, asked: ChangeSubject) -> SchemaSubject:
    """Set the compatibility mode of a subject."""
    await node.registry.set_mode(asked.subject, asked.mode)
    return describe_subject(node, asked)


async def delete_subject(node: Node, asked: DeleteSubject) -> None:
    """Remove a subject."""
    await node.registry.delete_subject(asked.subject)


async def check_schema(node: Node, asked: CheckSchema) -> Compatibility:
    """Tell what would keep a definition from being registered."""
    reasons = await node.registry.check(
        asked.subject, asked.type, asked.definition, mode=asked.mode
    )
    return Compatibility(compatible=not reasons, reasons=reasons)


# Versions


def list_versions(node: Node, asked: ListVersions) -> VersionPage:
    """Return as many versions as fit into a page, and one at least."""
    limit = max(1, min(asked.limit, PAGE_MAX))
    page = VersionPage(rows=[])
    size_bytes = 0
    for found in node.registry.versions(asked.subject):
        if found.version <= asked.after:
            continue
        size_bytes += ROW_BYTES + _size_bytes(found.definition, found.description, *found.tags)
        if page.rows and (len(page.rows) == limit or size_bytes > LISTING_BYTES):
            page.next = page.rows[-1].version
            break
        page.rows.append(_version(found))
    return page


async def register_schema(node: Node, asked: RegisterSchema) -> Made[RegisteredSchema]:
    """Add a version, or find that it is there."""
    found = await node.registry.register(
        asked.subject,
        asked.type,
        asked.definition,
        description=asked.description,
        created_by=asked.created_by,
        tags=asked.tags,
        mode=asked.mode,
    )
    row = RegisteredSchema(found.schema_id, found.version, found.fingerprint)
    return Made(row, found.is_new)


def describe_version(node: Node, asked: DescribeVersion) -> SchemaVersion:
    """Return one version of a subject."""
    number = 0 if asked.version == "latest" else int(asked.version)
    return _version(node.registry.version(asked.subject, number))


async def delete_version(node: Node, asked: DeleteVersion) -> None:
    """Remove one version."""
    await node.registry.delete_version(asked.subject, asked.version)


def describe_schema_id(node: Node, asked: DescribeSchemaId) -> SchemaVersion:
    """Return a version by the id of its subject."""
    return _version(node.registry.get(asked.schema_id, asked.version))


# Bindings


def list_bindings(node: Node, asked: ListBindings) -> BindingPage:
    """Return a page of bindings."""
    rows = [row for row in node.registry.bindings() if row.topic > asked.after]
    page = rows[: asked.limit]
    more = page[-1].topic if len(rows) > len(page) else ""
    return BindingPage(rows=[_binding(row) for row in page], next=more)


def describe_binding(node: Node, asked: DescribeBinding) -> SchemaBinding:
    """Return what a topic is bound to."""
    return _binding(node.registry.binding(asked.topic))


async def bind_topic(node: Node, asked: BindTopic) -> SchemaBinding:
    """Bind a topic to a subject."""
    binding = await node.registry.bind(
        asked.topic,
        asked.subject,
        policy=asked.policy,
        validate_payload=asked.validate_payload,
        version=asked.version,
        min_version=asked.min_version,
    )
    return _binding(binding)


async def unbind_topic(node: Node, asked: UnbindTopic) -> None:
    """Free a topic of its subject."""
    await node.registry.unbind(asked.topic)


def _size_bytes(*texts: str | bytes) -> int:
    # Text has up to four bytes for a character.
    return sum(len(text) * (1 if isinstance(text, bytes) else 4) for text in texts)


def _version(found: "SubjectVersion") -> SchemaVersion:
    return SchemaVersion(
        subject=found.subject,
        schema_id=found.schema_id,
        version=found.version,
        type=found.type,
        definition=found.definition,
        fingerprint=found.fingerprint,
        description=found.description,
        created_by=found.created_by,
        tags=list(found.tags),
        created_ms=found.created_ms,
    )


def _subject(found: "SubjectReport") -> SchemaSubject:
    return SchemaSubject(
        subject=found.subject,
        schema_id=found.schema_id,
        type=found.type,
        mode=found.mode,
        latest_version=found.latest_version,
        versions=list(found.versions),
        tags=list(found.tags),
    )


def _binding(found: "Binding") -> SchemaBinding:
    return SchemaBinding(
        topic=found.topic,
        subject=found.subject,
        schema_id=found.schema_id,
        policy=found.policy,
        validate_payload=found.validate_payload,
        version=found.version,
        min_version=found.min_version,
    )
