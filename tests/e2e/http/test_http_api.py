"""The HTTP API of a real broker: beside native clients, and over a restart."""

import msgspec
import pytest
from tests.e2e.conftest import BrokerProcess
from tests.e2e.http.asking import API, ORDERS, ask

import ister

pytestmark = pytest.mark.e2e

SCHEMA = msgspec.json.encode(
    {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
).decode()


async def test_http_and_native_clients_share_topics(broker: BrokerProcess) -> None:
    assert ask(broker.http, "PUT", ORDERS, {"kind": "stream"}).status == 201
    subscription = f"{ORDERS}/subscriptions/billing"
    assert ask(broker.http, "PUT", subscription, {"type": "shared"}).status == 201
    message = {"payload": "by http", "key": "k", "attributes": {"a": "1"}}
    assert ask(broker.http, "POST", f"{ORDERS}/messages", message).json["offset"] == 0

    async with ister.connect(broker.url) as client:
        async with client.producer("/default/orders", name="shop") as producer:
            await producer.send(b"by the client")
        async with client.subscribe("/default/orders", "billing", type="shared") as sub:
            first = await sub.receive(timeout=20)
            second = await sub.receive(timeout=20)
            await first.ack()
            await second.ack(confirm=True)

    assert (first.payload, first.key, first.attributes) == (b"by http", "k", {"a": "1"})
    assert second.payload == b"by the client"
    rows = ask(broker.http, "GET", f"{ORDERS}/messages").json["rows"]
    assert [(row["offset"], row["payload"]) for row in rows] == [
        (0, "by http"),
        (1, "by the client"),
    ]
    assert ask(broker.http, "GET", subscription).json["cursor"]["lag"] == 0


def test_what_was_made_over_http_outlives_a_restart(broker: BrokerProcess) -> None:
    assert ask(broker.http, "PUT", f"{API}/namespaces/shop").status == 201
    topic = f"{API}/namespaces/shop/topics/orders"
    settings = {"kind": "stream", "partitions": 2, "max_messages": 9}
    assert ask(broker.http, "PUT", topic, settings).status == 201
    patched = {"max_deliveries": 7}
    made = {"start": {"origin": "earliest"}, "settings": patched}
    assert ask(broker.http, "PUT", f"{topic}/subscriptions/billing", made).status == 201
    assert ask(broker.http, "POST", f"{topic}/subscriptions/billing/pause").status == 204
    schema = {"type": "json_schema", "definition": SCHEMA}
    assert ask(broker.http, "POST", f"{API}/schemas/order/versions", schema).status == 201
    assert ask(broker.http, "PUT", f"{topic}/binding", {"subject": "order"}).status == 200
    targets = ["/namespaces/shop", "/schemas/order/versions/latest", "/bindings"]
    before = [ask(broker.http, "GET", API + target).json for target in targets]

    broker.kill()
    broker.restart()

    assert [ask(broker.http, "GET", API + target).json for target in targets] == before
    found = ask(broker.http, "GET", topic).json
    assert (found["partitions"], found["settings"]["max_messages"]) == (2, 9)
    assert found["schema"]["subject"] == "order"
    cursor = ask(broker.http, "GET", f"{topic}/subscriptions/billing").json["cursor"]
    assert (cursor["paused"], cursor["settings"]["max_deliveries"]) == (True, 7)


async def test_a_bound_topic_takes_only_what_follows_its_schema(broker: BrokerProcess) -> None:
    assert ask(broker.http, "PUT", ORDERS, {"kind": "stream"}).status == 201
    schema = {"type": "json_schema", "definition": SCHEMA}
    assert ask(broker.http, "POST", f"{API}/schemas/order/versions", schema).status == 201
    assert ask(broker.http, "PUT", f"{ORDERS}/binding", {"subject": "order"}).status == 200

    bad = ask(broker.http, "POST", f"{ORDERS}/messages", {"payload": '{"a": "x"}'})
    good = ask(broker.http, "POST", f"{ORDERS}/messages", {"payload": '{"a": 1}'})

    assert bad.error == (400, 1015)
    assert good.json["offset"] == 0
    async with ister.connect(broker.url) as client, client.producer("/default/orders") as producer:
        with pytest.raises(ister.errors.SchemaViolationError):
            await producer.send(b"{}")
    assert ask(broker.http, "DELETE", f"{ORDERS}/binding").status == 204
    assert ask(broker.http, "POST", f"{ORDERS}/messages", {"payload": "x"}).json["offset"] == 1
