"""What a user of danube-client does with schemas; run as a process of its own with a URL.

Writes what it saw as JSON, for a test to look at: that package and our doors live apart.
"""

import asyncio
import json
import sys
from collections.abc import Awaitable
from typing import Any

import grpc
from danube import (
    CompatibilityMode,
    DanubeClient,
    DanubeClientBuilder,
    DispatchStrategy,
    Producer,
    SchemaType,
    SubType,
)

V1 = b'{"type": "object", "properties": {"id": {"type": "integer"}}, "required": ["id"]}'
V2 = (
    b'{"type": "object", "properties": {"id": {"type": "integer"}, "note": {"type": "string"}},'
    b' "required": ["id"]}'
)
BROKEN = b'{"type": "object", "properties": {"id": {"type": "string"}}, "required": ["id"]}'

SUBJECT = "orders-value"
TOPIC = "/default/orders"
WAIT_S = 20.0


async def code_of(call: Awaitable[object]) -> str:
    """Return the status that a call ends with."""
    try:
        await call
    except grpc.aio.AioRpcError as error:
        name: str = error.code().name
        return name
    return "OK"


async def register(client: DanubeClient, definition: bytes, subject: str = SUBJECT) -> int:
    builder = client.schema().register_schema(subject)
    made = builder.with_type(SchemaType.JSON_SCHEMA).with_schema_data(definition)
    schema_id: int = await made.with_tags(["shop"]).execute()
    return schema_id


async def evolve(client: DanubeClient) -> dict[str, Any]:
    """Register, look, check, change the mode, delete."""
    schemas = client.schema()
    seen: dict[str, Any] = {"ids": [await register(client, V1), await register(client, V2)]}
    schema_id = seen["ids"][0]
    latest = await schemas.get_latest_schema(SUBJECT)
    first = await schemas.get_schema_version(schema_id, 1)
    seen["latest"] = (latest.version, latest.schema_type, latest.schema_definition_as_string())
    seen["first"] = first.schema_definition_as_string()
    seen["versions"] = await schemas.list_versions(SUBJECT)
    kind = SchemaType.JSON_SCHEMA
    seen["good"] = await schemas.check_compatibility(SUBJECT, V2, kind)
    seen["bad"] = await schemas.check_compatibility(SUBJECT, BROKEN, kind)
    seen["refused"] = await code_of(register(client, BROKEN))
    await schemas.set_compatibility_mode(SUBJECT, CompatibilityMode.NONE)
    seen["taken"] = await code_of(register(client, BROKEN))
    seen["deleted"] = (await schemas.delete_schema_version(SUBJECT, 3))[0]
    seen["left"] = await schemas.list_versions(SUBJECT)
    seen["unknown"] = await code_of(schemas.get_latest_schema("nothing"))
    return seen


def producer(client: DanubeClient, name: str) -> Any:
    builder = client.new_producer().with_topic(TOPIC).with_name(name)
    return builder.with_dispatch_strategy(DispatchStrategy.RELIABLE)


async def opened(builder: Any) -> Producer:
    made: Producer = builder.build()
    await made.create()
    return made


async def exchange(client: DanubeClient) -> dict[str, Any]:
    """Send and receive with schemas, under a policy that warns and then under one that enforces."""
    seen: dict[str, Any] = {}
    latest = await opened(producer(client, "latest").with_schema_subject(SUBJECT))
    pinned = await opened(producer(client, "pinned").with_schema_version(SUBJECT, 1))
    plain = await opened(producer(client, "plain"))
    await register(client, V1, "other-value")
    other = producer(client, "other").with_schema_subject("other-value")
    seen["other"] = await code_of(opened(other))
    missing = producer(client, "missing").with_schema_subject("nothing")
    seen["missing"] = await code_of(opened(missing))
    consumer = (
        client.new_consumer()
        .with_topic(TOPIC)
        .with_consumer_name("c")
        .with_subscription("billing")
        .with_subscription_type(SubType.EXCLUSIVE)
        .build()
    )
    await consumer.subscribe()
    queue = await consumer.receive()

    await latest.send(b'{"id": 1}')
    await pinned.send(b'{"id": 2}')
    await plain.send(b"anything")
    schemas = client.schema()
    await schemas.configure_topic_schema(TOPIC, SUBJECT, "enforce", enable_payload_validation=True)
    config = await schemas.get_topic_schema_config(TOPIC)
    seen["config"] = (config.schema_subject, config.validation_policy, config.schema_id)
    seen["invalid"] = await code_of(latest.send(b'{"id": "one"}'))
    seen["valid"] = await code_of(latest.send(b'{"id": 3}'))
    await schemas.update_topic_validation_policy(TOPIC, "none")
    seen["unchecked"] = await code_of(latest.send(b'{"id": "one"}'))

    seen["messages"] = []
    for _ in range(5):
        message = await asyncio.wait_for(queue.get(), WAIT_S)
        version = message.schema_version if message.HasField("schema_version") else None
        seen["messages"].append((message.payload.decode(), version))
        seen.setdefault("schema_id", message.schema_id)
        await consumer.ack(message)
    await consumer.close()
    for one in (latest, pinned, plain):
        await one.close()
    return seen


async def main(url: str) -> None:
    """Do all of it."""
    client = await DanubeClientBuilder().service_url(url).build()
    seen = {"evolve": await evolve(client), "exchange": await exchange(client)}
    json.dump(seen, sys.stdout)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
