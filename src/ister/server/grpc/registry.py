"""Danube's schema registry, over ours. The same service is on the client port and the admin port.

Definitions are told as they were registered, not wrapped as Danube's broker does it: its clients
hand them to the application as they come, and its examples expect the text. What is registered or
checked here follows Danube's rule about required properties, beside our own.
"""

from typing import TYPE_CHECKING, Any

from ister.base import find_partition
from ister.base.errors import (
    BadNameError,
    ConflictError,
    InvalidError,
    NotFoundError,
    SchemaBindingNotFoundError,
    SchemaNotFoundError,
)
from ister.broker import Broker
from ister.server.grpc.admin.codes import Codes, coded, whole
from ister.server.grpc.calls.calls import Method
from ister.server.grpc.calls.status import StatusCode
from ister.server.grpc.messages import message, service

if TYPE_CHECKING:
    from ister.registry import Binding, Registry, SubjectVersion

# What Danube answers to whatever is wrong with a schema.
_REGISTERING: Codes = (
    (InvalidError, StatusCode.INTERNAL),
    (ConflictError, StatusCode.INTERNAL),
)
_CHECKING: Codes = (*_REGISTERING, (NotFoundError, StatusCode.INTERNAL))
_SETTING: Codes = ((SchemaNotFoundError, StatusCode.INTERNAL),)
_UPDATING: Codes = ((SchemaBindingNotFoundError, StatusCode.FAILED_PRECONDITION),)


def registry_service(registry: "Registry", broker: Broker) -> dict[str, Method]:
    """Return the service `danube_schema.SchemaRegistry`."""
    schemas = _Schemas(registry)
    topics = _TopicSchemas(registry, broker)
    return service(
        "danube_schema.SchemaRegistry",
        {
            "RegisterSchema": coded(schemas.register, _REGISTERING),
            "GetSchema": schemas.get,
            "GetLatestSchema": schemas.latest,
            "ListVersions": schemas.versions,
            "CheckCompatibility": coded(schemas.check, _CHECKING),
            "DeleteSchemaVersion": schemas.delete,
            "SetCompatibilityMode": coded(schemas.set_mode, _SETTING),
            "ListSubjects": schemas.subjects,
            "ConfigureTopicSchema": whole(topics.configure),
            "UpdateTopicValidationPolicy": coded(topics.update, _UPDATING),
            "GetTopicSchemaConfig": topics.get,
        },
    )


class _Schemas:
    """What is about subjects and versions."""

    def __init__(self, registry: "Registry") -> None:
        self._registry = registry

    async def register(self, request: Any, _: object) -> Any:
        made = await self._registry.register(
            request.subject,
            request.schema_type,
            request.schema_definition,
            description=request.description,
            created_by=request.created_by,
            tags=tuple(request.tags),
            keep_required=True,
        )
        return message("danube_schema.RegisterSchemaResponse")(
            schema_id=made.schema_id,
            version=made.version,
            is_new_version=made.is_new,
            fingerprint=made.fingerprint,
        )

    async def get(self, request: Any, _: object) -> Any:
        return self._response(self._registry.get(request.schema_id, request.version))

    async def latest(self, request: Any, _: object) -> Any:
        return self._response(self._registry.version(request.subject))

    def _response(self, found: "SubjectVersion") -> Any:
        return message("danube_schema.GetSchemaResponse")(
            schema_id=found.schema_id,
            version=found.version,
            subject=found.subject,
            schema_type=str(found.type),
            schema_definition=found.definition,
            description=found.description,
            created_at=found.created_ms // 1000,
            created_by=found.created_by,
            tags=found.tags,
            fingerprint=found.fingerprint,
            compatibility_mode=str(self._registry.subject(found.subject).mode),
        )

    async def versions(self, request: Any, _: object) -> Any:
        row = message("danube_schema.SchemaVersionInfo")
        return message("danube_schema.ListVersionsResponse")(
            versions=[
                row(
                    version=one.version,
                    created_at=one.created_ms // 1000,
                    created_by=one.created_by,
                    description=one.description,
                    fingerprint=one.fingerprint,
                    schema_id=one.schema_id,
                )
                for one in self._registry.versions(request.subject)
            ]
        )

    async def check(self, request: Any, _: object) -> Any:
        self._registry.subject(request.subject)  # Raises: Danube compares with what is there.
        mode = request.compatibility_mode if request.HasField("compatibility_mode") else None
        reasons = await self._registry.check(
            request.subject,
            request.schema_type,
            request.new_schema_definition,
            mode=mode,
            keep_required=True,
        )
        return message("danube_schema.CheckCompatibilityResponse")(
            is_compatible=not reasons, errors=reasons
        )

    async def delete(self, request: Any, _: object) -> Any:
        subject, version = request.subject, request.version
        text = f"version {version} of {subject!r} was deleted"
        try:
            await self._registry.delete_version(subject, version)
        except (BadNameError, SchemaNotFoundError):
            text = f"there is no version {version} of {subject!r}"
        return message("danube_schema.DeleteSchemaVersionResponse")(success=True, message=text)

    async def set_mode(self, request: Any, _: object) -> Any:
        await self._registry.set_mode(request.subject, request.compatibility_mode)
        text = f"mode of {request.subject!r} is {request.compatibility_mode.lower()}"
        return message("danube_schema.SetCompatibilityModeResponse")(success=True, message=text)

    async def subjects(self, _request: Any, _: object) -> Any:
        row = message("danube_schema.SubjectSummary")
        return message("danube_schema.ListSubjectsResponse")(
            subjects=[
                row(
                    subject=one.subject,
                    schema_type=str(one.type),
                    latest_version=one.latest_version,
                    compatibility_mode=str(one.mode),
                    schema_id=one.schema_id,
                    tags=one.tags,
                )
                for one in self._registry.subjects()
            ]
        )


class _TopicSchemas:
    """What is about the schema of a topic. Partitions share that of the whole topic."""

    def __init__(self, registry: "Registry", broker: Broker) -> None:
        self._registry = registry
        self._broker = broker

    async def configure(self, request: Any, _: object) -> Any:
        topic = self._topic(request.topic_name)
        subject = request.schema_subject
        self._registry.subject(subject)
        binding = await self._registry.bind(
            topic,
            subject,
            policy=request.validation_policy,
            validate_payload=request.enable_payload_validation,
        )
        try:
            self._topic(topic)
        except NotFoundError:
            # It was deleted meanwhile: a new one of its name is not to be bound.
            await self._registry.on_topic_deleted(binding)
            raise
        text = f"{topic} is bound to {subject!r}"
        return message("danube_schema.ConfigureTopicSchemaResponse")(success=True, message=text)

    async def update(self, request: Any, _: object) -> Any:
        topic = self._topic(request.topic_name)
        await self._registry.set_policy(
            topic,
            request.validation_policy,
            validate_payload=request.enable_payload_validation,
        )
        text = f"policy of {topic} is {request.validation_policy.lower()}"
        return message("danube_schema.UpdateTopicValidationPolicyResponse")(
            success=True, message=text
        )

    async def get(self, request: Any, _: object) -> Any:
        topic = self._topic(request.topic_name)
        response = message("danube_schema.GetTopicSchemaConfigResponse")
        try:
            found: Binding = self._registry.binding(topic)
        except SchemaBindingNotFoundError:
            return response(validation_policy="none")
        return response(
            schema_subject=found.subject,
            validation_policy=str(found.policy),
            enable_payload_validation=found.validate_payload,
            schema_id=found.schema_id,
        )

    def _topic(self, name: str) -> str:
        """Return the topic that a name stands for, or raise: it must be there."""
        self._broker.catalog.get(name)
        partition = find_partition(name)
        whole = partition is not None and self._broker.partition_count(partition[0])
        return partition[0] if partition is not None and whole else name
