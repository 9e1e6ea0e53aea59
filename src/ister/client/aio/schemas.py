"""`client.schemas`: the schema registry of the broker, and the schemas that messages came with."""

import asyncio
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, NamedTuple

from ister.base import SchemaBinding, SchemaSubject, SchemaVersion
from ister.base.errors import (
    BadRequestError,
    BadSchemaError,
    IsterError,
    NotFoundError,
    SchemaNotFoundError,
)
from ister.client.aio.connection.link import BrokerLink
from ister.client.session import Values, check_topic, definition_of, parsed, registration_of
from ister.codec import SchemaRef
from ister.wire import (
    BindSchema,
    CheckSchema,
    DeleteSchema,
    DescribeSchema,
    Done,
    GetSchema,
    GetSchemaBinding,
    ListSchemas,
    ListSchemaVersions,
    RegisterSchema,
    SchemaBound,
    SchemaChecked,
    SchemaDescription,
    SchemaFound,
    SchemaRegistered,
    SetSchemaMode,
    UnbindSchema,
    Welcome,
)
from ister.wire import Schemas as SchemasPage
from ister.wire import SchemaVersions as VersionsPage

if TYPE_CHECKING:
    from ister import schemas

# Schemas of others that are kept; the oldest makes room. A few KiB each, as people write them.
WRITERS_MAX = 1_024
# A definition from this size on is parsed beside the event loop: 16 KiB take a millisecond.
PARSE_BYTES = 16 * 1024

# `Schemas.list` hides the type of the same name.
_Reasons = list[str]
_Subjects = list[SchemaSubject]
_Versions = list[SchemaVersion]


class Registration(NamedTuple):
    """What became of a definition that was registered."""

    schema_id: int
    version: int
    # Whether this made a new version: not when one means the same.
    is_new: bool
    fingerprint: str


class Schemas:
    """The schema registry.

    >>> order = {"type": "object", "required": ["id"], "properties": {"id": {"type": "integer"}}}
    >>> await client.schemas.register("orders", ister.Schema("json_schema", order))
    Registration(schema_id=1, version=1, is_new=True, fingerprint='sha256:...')
    >>> (await client.schemas.latest("orders")).version
    1
    """

    def __init__(self, link: Callable[[], BrokerLink]) -> None:
        self._link = link
        # By the reference that batches carry, as this connection knows them: versions never change.
        self._writers: dict[SchemaRef, schemas.Schema | IsterError] = {}
        self._welcome: Welcome | None = None
        self._learning: dict[SchemaRef, asyncio.Task[schemas.Schema | IsterError]] = {}

    async def register(
        self,
        subject: str,
        schema: object,
        *,
        description: str = "",
        created_by: str = "",
        tags: Sequence[str] = (),
        mode: str | None = None,
    ) -> Registration:
        """Add a version to `subject`, which is made when it does not exist.

        `schema` is what `client.producer(schema=...)` takes. One that means the same as a version
        there is gets that version. Raises `SchemaIncompatibleError` with all reasons when it
        breaks what the mode of the subject promises, which is 'backward' unless `mode` says
        otherwise: the new schema reads what was written with the one before it.
        """
        if isinstance(tags, str):
            raise BadRequestError(f"tags is a list of words, as [{tags!r}]")
        type_, definition = definition_of(schema)
        command = RegisterSchema(
            subject=subject,
            type=type_,
            definition=definition,
            description=description,
            created_by=created_by,
            tags=list(tags),
            mode=mode or "",
        )
        done = await self._link().call(command, SchemaRegistered)
        return Registration(done.schema_id, done.version, done.is_new, done.fingerprint)

    async def check(self, subject: str, schema: object, *, mode: str | None = None) -> _Reasons:
        """Return what keeps `schema` from being the next version of `subject`; empty: nothing."""
        type_, definition = definition_of(schema)
        command = CheckSchema(subject=subject, type=type_, definition=definition, mode=mode or "")
        return (await self._link().call(command, SchemaChecked)).reasons

    async def get(self, subject: str | int, version: int = 0) -> SchemaVersion:
        """Return a version of a subject, which may also be named by its `schema_id`.

        Without a version, the latest.
        """
        if isinstance(subject, str):
            command = GetSchema(subject=subject, version=version)
        else:
            command = GetSchema(schema_id=subject, version=version)
        return (await self._link().call(command, SchemaFound)).schema

    async def latest(self, subject: str) -> SchemaVersion:
        """Return the latest version of a subject."""
        return await self.get(subject)

    async def versions(self, subject: str) -> _Versions:
        """Return all versions of a subject, oldest first."""
        rows: list[SchemaVersion] = []
        after = 0
        while True:
            command = ListSchemaVersions(subject=subject, after=after)
            page = await self._link().call(command, VersionsPage)
            rows += page.rows
            after = page.after
            if not after:
                return rows

    async def describe(self, subject: str) -> SchemaSubject:
        """Return what a subject is, and which versions it has."""
        command = DescribeSchema(subject=subject)
        return (await self._link().call(command, SchemaDescription)).report

    async def delete(self, subject: str, version: int | None = None) -> None:
        """Delete a version of a subject, or all of it. Their numbers are never used again."""
        if version == 0:
            raise BadRequestError("versions count from 1; without one all of them are deleted")
        await self._link().call(DeleteSchema(subject=subject, version=version or 0), Done)

    async def set_mode(self, subject: str, mode: str) -> None:
        """Say what new versions are to be compatible with.

        'none', 'backward', 'forward', 'full', 'backward_transitive', 'forward_transitive' or
        'full_transitive'.
        """
        await self._link().call(SetSchemaMode(subject=subject, mode=mode), Done)

    async def bind(
        self,
        topic: str,
        subject: str,
        *,
        policy: str = "enforce",
        validate_payload: bool = True,
        version: int | None = None,
        min_version: int | None = None,
    ) -> SchemaBinding:
        """Let `topic` take messages of `subject`, all of its versions unless said otherwise.

        `policy` is 'enforce' (others are refused with `SchemaViolationError`), 'warn' (they are
        logged and counted) or 'none'. Without `validate_payload` only the schema that the producer
        names is looked at.
        """
        command = BindSchema(
            topic=check_topic(topic),
            subject=subject,
            policy=policy,
            validate_payload=validate_payload,
            version=version or 0,
            min_version=min_version or 0,
        )
        return (await self._link().call(command, SchemaBound)).binding

    async def unbind(self, topic: str) -> None:
        """Let `topic` take anything again."""
        await self._link().call(UnbindSchema(topic=check_topic(topic)), Done)

    async def binding(self, topic: str) -> SchemaBinding:
        """Return what `topic` is bound to; raise `SchemaBindingNotFoundError`."""
        command = GetSchemaBinding(topic=check_topic(topic))
        return (await self._link().call(command, SchemaBound)).binding

    async def list(self) -> _Subjects:
        """Return all subjects, by name."""
        rows: _Subjects = []
        after = ""
        while True:
            page = await self._link().call(ListSchemas(after=after), SchemasPage)
            rows += page.rows
            after = page.after
            if not after:
                return rows

    # For producers and subscriptions

    async def reference(self, values: Values, subject: str, *, register: bool) -> SchemaRef:
        """Return what batches of `values` are to carry; registers the schema if that is wanted."""
        schema = values.schema
        if register:
            command = registration_of(values, subject).command
            done = await self._link().call(command, SchemaRegistered)
            found = done.schema_id, done.version
        else:
            found = await self._find(subject, schema.fingerprint)
        self._keep(found, schema)
        return found

    async def _find(self, subject: str, fingerprint: str) -> SchemaRef:
        versions = await self.versions(subject)
        for one in reversed(versions):
            if one.fingerprint == fingerprint:
                return one.schema_id, one.version
        if not versions:
            raise SchemaNotFoundError(subject, 0)
        raise BadRequestError(
            f"no version of schema {subject!r} is the one of this producer: register it with "
            "`ister schemas register`, or leave out `register=False`"
        )

    def writer(self, ref: SchemaRef) -> "schemas.Schema | IsterError | None":
        """Return the schema behind a reference, as far as it is known."""
        return self._known().get(ref)

    def learn(self, ref: SchemaRef) -> "asyncio.Task[schemas.Schema | IsterError]":
        """Fetch the schema behind a reference, once for all who want it."""
        task = self._learning.get(ref)
        if task is None:
            task = self._learning[ref] = asyncio.create_task(self._fetch(ref))
            task.add_done_callback(lambda _: self._learning.pop(ref, None))
        return task

    async def _fetch(self, ref: SchemaRef) -> "schemas.Schema | IsterError":
        schema_id, version = ref
        try:
            found = await self.get(schema_id, version)
            if len(found.definition) < PARSE_BYTES:
                schema = parsed(found.type, found.definition)
            else:
                schema = await asyncio.to_thread(parsed, found.type, found.definition)
        except (NotFoundError, BadSchemaError) as error:
            # Asking again gets the same answer: numbers are never used twice.
            self._keep(ref, error)
            return error
        except IsterError as error:
            return error
        self._keep(ref, schema)
        return schema

    def _keep(self, ref: SchemaRef, writer: "schemas.Schema | IsterError") -> None:
        writers = self._known()
        writers[ref] = writer
        while len(writers) > WRITERS_MAX:
            del writers[next(iter(writers))]

    def _known(self) -> "dict[SchemaRef, schemas.Schema | IsterError]":
        welcome = self._link().session.welcome
        if welcome is not self._welcome:
            # Another connection: that broker may have lost its registry, and begun to count anew.
            self._welcome = welcome
            self._writers.clear()
        return self._writers
