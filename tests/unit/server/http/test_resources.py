"""Namespaces, topics, messages and subscriptions over HTTP."""

import asyncio
import base64
import json

import pytest
from tests.unit.server.http.caller import Caller

from ister.testing import MemoryBroker, VirtualClock

API = "/api/v1"
TOPICS = f"{API}/namespaces/default/topics"
ORDERS = f"{TOPICS}/orders"
BILLING = f"{ORDERS}/subscriptions/billing"


@pytest.fixture
async def orders(call: Caller) -> None:
    """A stream `/default/orders` with five messages."""
    assert (await call("PUT", ORDERS, {"kind": "stream"})).status == 201
    for number in range(5):
        answer = await call("POST", f"{ORDERS}/messages", {"payload": f"m{number}"})
        assert answer.json == {"topic": "/default/orders", "offset": number}


@pytest.fixture
async def billing(call: Caller, orders: None) -> None:
    """A subscription `billing` on it, at its start."""
    answer = await call("PUT", BILLING, {"type": "shared", "start": {"origin": "earliest"}})
    assert answer.status == 201


# Namespaces and brokers


async def test_a_namespace_is_made_once_described_and_removed(call: Caller) -> None:
    made = await call("PUT", f"{API}/namespaces/shop")
    again = await call("PUT", f"{API}/namespaces/shop")

    assert (made.status, again.status) == (201, 200)
    assert made.json == again.json == (await call("GET", f"{API}/namespaces/shop")).json
    assert made.json["topics"] == 0
    assert (await call("DELETE", f"{API}/namespaces/shop")).status == 204
    gone = await call("GET", f"{API}/namespaces/shop")
    assert gone.error == (404, 3002, "NamespaceNotFoundError")


async def test_a_namespace_with_topics_is_not_removed(call: Caller) -> None:
    await call("PUT", f"{API}/namespaces/shop")
    await call("PUT", f"{API}/namespaces/shop/topics/a", {"kind": "live"})

    answer = await call("DELETE", f"{API}/namespaces/shop")

    assert answer.error == (409, 4015, "NamespaceNotEmptyError")


async def test_namespaces_are_listed_by_page(call: Caller) -> None:
    for name in ("b", "a", "c"):
        await call("PUT", f"{API}/namespaces/{name}")

    seen = []
    after = ""
    while True:
        page = (await call("GET", f"{API}/namespaces?limit=2&after={after}")).json
        assert len(page["rows"]) <= 2
        seen += page["rows"]
        after = page["next"]
        if not after:
            break

    assert seen == sorted(seen)
    assert {"a", "b", "c", "default"} <= set(seen)


async def test_the_broker_tells_its_figures(call: Caller) -> None:
    assert (await call("GET", f"{API}/broker")).json["broker"] == "memory"
    assert [row["name"] for row in (await call("GET", f"{API}/brokers")).json["rows"]] == ["memory"]
    assert (await call("GET", f"{API}/brokers/balance")).json["deviation"] == 0.0


# Topics


async def test_a_topic_is_made_once_described_and_removed(call: Caller) -> None:
    wanted = {"kind": "stream", "partitions": 3, "durability": "os", "max_bytes": 1_000_000}

    made = await call("PUT", ORDERS, wanted)
    again = await call("PUT", ORDERS, wanted)

    assert (made.status, again.status) == (201, 200)
    assert made.json["partitions"] == 3
    assert made.json["settings"]["durability"] == "os"
    assert made.json["settings"]["max_bytes"] == 1_000_000
    partitions = (await call("GET", f"{ORDERS}/partitions")).json["rows"]
    assert [row["topic"] for row in partitions] == [f"/default/orders-part-{n}" for n in range(3)]
    assert (await call("DELETE", ORDERS)).status == 204
    assert (await call("GET", ORDERS)).error == (404, 3001, "TopicNotFoundError")
    assert (await call("DELETE", ORDERS)).error == (404, 3001, "TopicNotFoundError")


async def test_a_partitioned_topic_gets_more_partitions(call: Caller) -> None:
    await call("PUT", ORDERS, {"kind": "stream", "partitions": 2})

    grown = await call("PUT", f"{ORDERS}/partitions", {"partitions": 4})
    fewer = await call("PUT", f"{ORDERS}/partitions", {"partitions": 1})

    assert len(grown.json["rows"]) == len(fewer.json["rows"]) == 4
    assert grown.json["rows"][3]["topic"] == "/default/orders-part-3"
    missing = await call("PUT", f"{TOPICS}/none/partitions", {"partitions": 4})
    assert missing.error == (404, 3001, "TopicNotFoundError")
    await call("PUT", f"{TOPICS}/plain", {"kind": "stream"})
    plain = await call("PUT", f"{TOPICS}/plain/partitions", {"partitions": 4})
    assert plain.error == (409, 4001, "TopicExistsError")


async def test_a_topic_that_exists_otherwise_is_a_conflict(call: Caller) -> None:
    await call("PUT", ORDERS, {"kind": "stream"})

    answer = await call("PUT", ORDERS, {"kind": "live"})

    assert answer.error == (409, 4001, "TopicExistsError")
    assert answer.json["error"]["fields"]["topic"] == "/default/orders"


async def test_settings_of_a_stream_are_changed_and_the_others_stay(call: Caller) -> None:
    await call("PUT", f"{TOPICS}/orders", {"kind": "stream", "max_bytes": 7, "ttl_ms": 9})

    answer = await call("PATCH", f"{TOPICS}/orders", {"max_age_ms": 60_000, "ttl_ms": 0})

    settings = answer.json["settings"]
    assert (settings["max_age_ms"], settings["max_bytes"], settings["ttl_ms"]) == (60_000, 7, 0)
    assert (await call("GET", f"{TOPICS}/orders")).json["settings"] == settings
    object_ = await call("PATCH", f"{TOPICS}/orders", {"durability": "object"})
    assert object_.error == (400, 1007, "BadRequestError")
    lag = await call("PATCH", f"{TOPICS}/orders", {"min_compaction_lag_ms": 1})
    assert "min_compaction_lag is for retention 'compact'" in str(lag.json)
    unknown = await call("PATCH", f"{TOPICS}/orders", {"retention": "compact"})
    assert unknown.error[0] == 400
    await call("PUT", f"{TOPICS}/live", {"kind": "live"})
    assert (await call("PATCH", f"{TOPICS}/live", {"ttl_ms": 1})).error[2] == "WrongKindError"


async def test_a_topic_in_no_namespace_is_not_made(call: Caller) -> None:
    answer = await call("PUT", f"{API}/namespaces/none/topics/a", {"kind": "live"})

    assert answer.error == (404, 3002, "NamespaceNotFoundError")


async def test_topics_are_listed_by_page_kind_pattern_and_namespace(call: Caller) -> None:
    await call("PUT", f"{API}/namespaces/shop")
    for name in ("orders.eu", "orders.us", "prices"):
        await call("PUT", f"{TOPICS}/{name}", {"kind": "stream"})
    await call("PUT", f"{API}/namespaces/shop/topics/orders.eu", {"kind": "live"})

    async def listed(target: str) -> list[str]:
        return [row["topic"] for row in (await call("GET", f"{API}{target}")).json["rows"]]

    assert await listed("/topics?kind=live") == ["/shop/orders.eu"]
    streams = ["/default/orders.eu", "/default/orders.us"]
    assert await listed("/topics?kind=stream&limit=2") == streams
    assert await listed("/topics?kind=stream&after=/default/orders.us") == ["/default/prices"]
    assert await listed("/namespaces/shop/topics") == ["/shop/orders.eu"]
    assert await listed("/namespaces/default/topics?pattern=/default/orders.*") == streams
    assert await listed("/topics?pattern=orders.*") == streams
    assert await listed("/namespaces/shop/topics?pattern=orders.*") == ["/shop/orders.eu"]
    none = await call("GET", f"{API}/namespaces/none/topics")
    assert none.error == (404, 3002, "NamespaceNotFoundError")


async def test_a_stream_is_purged_before_an_offset_or_wholly(call: Caller, orders: None) -> None:
    assert (await call("POST", f"{ORDERS}/purge", {"before": 2})).json == {"messages": 2}
    gone = await call("GET", f"{ORDERS}/messages?offset=0")
    assert gone.error == (404, 3005, "OffsetGoneError")
    assert (await call("POST", f"{ORDERS}/purge", {})).json == {"messages": 3}


async def test_a_live_topic_has_nothing_to_purge(call: Caller) -> None:
    await call("PUT", ORDERS, {"kind": "live"})

    assert (await call("POST", f"{ORDERS}/purge", {})).error == (400, 1013, "WrongKindError")


# Messages


async def test_messages_are_looked_at_by_offset(call: Caller, orders: None) -> None:
    page = (await call("GET", f"{ORDERS}/messages?offset=1&limit=2")).json

    assert [(row["offset"], row["payload"]) for row in page["rows"]] == [(1, "m1"), (2, "m2")]
    assert page["next_offset"] == 3
    rest = (await call("GET", f"{ORDERS}/messages?offset=3")).json
    assert [row["offset"] for row in rest["rows"]] == [3, 4]
    end = (await call("GET", f"{ORDERS}/messages?offset=5")).json
    assert end == {"rows": [], "next_offset": 5}


async def test_a_message_keeps_its_bytes_key_and_attributes(call: Caller, orders: None) -> None:
    data = bytes(range(256))
    message = {
        "payload": base64.b64encode(data).decode(),
        "encoding": "base64",
        "key": "k",
        "attributes": {"a": "1"},
    }

    offset = (await call("POST", f"{ORDERS}/messages", message)).json["offset"]

    (row,) = (await call("GET", f"{ORDERS}/messages?offset={offset}")).json["rows"]
    assert {name: row[name] for name in message} == message


async def test_messages_published_at_once_each_get_an_offset(call: Caller, orders: None) -> None:
    answers = await asyncio.gather(
        *(call("POST", f"{ORDERS}/messages", {"payload": f"{n}"}) for n in range(50))
    )

    assert sorted(answer.json["offset"] for answer in answers) == list(range(5, 55))


async def test_a_payload_that_is_not_base64_is_refused(call: Caller, orders: None) -> None:
    message = {"payload": "%", "encoding": "base64"}

    answer = await call("POST", f"{ORDERS}/messages", message)

    assert answer.error == (400, 1007, "BadRequestError")


async def test_publishing_makes_no_topic(call: Caller) -> None:
    answer = await call("POST", f"{ORDERS}/messages", {"payload": "x"})

    assert answer.error == (404, 3001, "TopicNotFoundError")


async def test_messages_of_one_key_are_in_one_partition(call: Caller, broker: MemoryBroker) -> None:
    await call("PUT", ORDERS, {"kind": "stream", "partitions": 4})
    async with broker.connect() as client, client.producer("/default/orders") as producer:
        sent = await producer.send(b"x", key="paris")

    published = (await call("POST", f"{ORDERS}/messages", {"payload": "y", "key": "paris"})).json
    without = (await call("POST", f"{ORDERS}/messages", {"payload": "z"})).json

    assert published == {"topic": sent.topic, "offset": sent.offset + 1}
    assert without["topic"].startswith("/default/orders-part-")


async def test_a_message_names_the_schema_it_is_said_to_follow(call: Caller, orders: None) -> None:
    await call("POST", f"{API}/schemas/order/versions", {"type": "string"})
    await call("PUT", f"{ORDERS}/binding", {"subject": "order"})

    sent = await call("POST", f"{ORDERS}/messages", {"payload": "x", "subject": "order"})
    (row,) = (await call("GET", f"{ORDERS}/messages?offset={sent.json['offset']}")).json["rows"]
    unknown = await call("POST", f"{ORDERS}/messages", {"payload": "x", "subject": "nothing"})

    assert (row["payload"], row["schema_version"]) == ("x", 1)
    assert row["schema_id"] > 0
    assert unknown.error == (404, 3007, "SchemaNotFoundError")


async def test_json_is_encoded_by_the_schema_of_the_topic(call: Caller, orders: None) -> None:
    fields = [{"name": "sku", "type": "string"}, {"name": "count", "type": "int"}]
    avro = json.dumps({"type": "record", "name": "Order", "fields": fields})
    await call("POST", f"{API}/schemas/order/versions", {"type": "avro", "definition": avro})
    await call("PUT", f"{ORDERS}/binding", {"subject": "order"})
    value = json.dumps({"sku": "tea", "count": 2})

    sent = await call("POST", f"{ORDERS}/messages", {"payload": value, "encoding": "schema"})
    (row,) = (await call("GET", f"{ORDERS}/messages?offset={sent.json['offset']}")).json["rows"]
    other = {"payload": json.dumps({"sku": 1}), "encoding": "schema"}
    refused = await call("POST", f"{ORDERS}/messages", other)
    broken = await call("POST", f"{ORDERS}/messages", {"payload": "{", "encoding": "schema"})

    # As Avro has it: a text with its length doubled before it, then the number doubled.
    assert row["payload"] == "\x06tea\x04"
    assert (refused.status, broken.status) == (400, 400)


async def test_a_topic_without_a_schema_encodes_nothing(call: Caller, orders: None) -> None:
    answer = await call("POST", f"{ORDERS}/messages", {"payload": "1", "encoding": "schema"})

    assert answer.error == (404, 3008, "SchemaBindingNotFoundError")


# Subscriptions


async def test_a_subscription_is_made_once_described_listed_and_removed(
    call: Caller, orders: None
) -> None:
    wanted = {
        "type": "key_shared",
        "filters": {"a": "x*"},
        "start": {"origin": "offset", "at": 2},
        "settings": {"ack_timeout_ms": 60_000, "backoff_ms": [10, 20]},
    }

    made = await call("PUT", BILLING, wanted)
    again = await call("PUT", BILLING, wanted)

    assert (made.status, again.status) == (201, 200)
    assert made.json["type"] == "key_shared"
    assert made.json["filters"] == {"a": "x*"}
    assert made.json["cursor"]["floors"] == {"/default/orders": 2}
    assert made.json["cursor"]["settings"]["ack_timeout_ms"] == 60_000
    for target in (f"{API}/subscriptions", f"{ORDERS}/subscriptions"):
        rows = (await call("GET", target)).json["rows"]
        assert [row["subscription"] for row in rows] == ["billing"]
    assert (await call("DELETE", BILLING)).status == 204
    assert (await call("GET", BILLING)).error == (404, 3004, "SubscriptionNotFoundError")


async def test_a_topic_that_is_not_there_has_no_list_of_subscriptions(call: Caller) -> None:
    answer = await call("GET", f"{ORDERS}/subscriptions")

    assert answer.error == (404, 3001, "TopicNotFoundError")


async def test_a_subscription_that_exists_otherwise_is_a_conflict(
    call: Caller, billing: None
) -> None:
    answer = await call("PUT", BILLING, {"type": "failover"})

    assert answer.error == (409, 4003, "SubscriptionMismatchError")


async def test_a_subscription_by_pattern_has_its_wildcards_in_the_path(
    call: Caller, orders: None
) -> None:
    path = f"{TOPICS}/%3E/subscriptions/all"

    assert (await call("PUT", path, {})).status == 201
    assert (await call("GET", path)).json["topic"] == "/default/>"


@pytest.mark.parametrize(
    ("place", "floor"),
    [
        ({"origin": "latest"}, 5),
        ({"origin": "earliest"}, 0),
        ({"origin": "offset", "at": 3}, 3),
        ({"origin": "time", "at": 0}, 0),
        ({"origin": "snapshot", "name": "start"}, 0),
    ],
)
async def test_a_subscription_moves_to_every_kind_of_place(
    place: dict[str, object], floor: int, call: Caller, billing: None
) -> None:
    assert (await call("PUT", f"{BILLING}/cursors/start")).status == 204

    answer = await call("POST", f"{BILLING}/seek", {"to": place})

    assert answer.json["cursor"]["floors"] == {"/default/orders": floor}


async def test_a_saved_cursor_can_be_dropped(call: Caller, billing: None) -> None:
    await call("PUT", f"{BILLING}/cursors/start")

    assert (await call("DELETE", f"{BILLING}/cursors/start")).status == 204
    gone = await call("DELETE", f"{BILLING}/cursors/start")
    assert gone.error == (404, 3006, "SnapshotNotFoundError")


async def test_a_subscription_rests_and_goes_on(call: Caller, billing: None) -> None:
    assert (await call("POST", f"{BILLING}/pause")).status == 204
    assert (await call("GET", BILLING)).json["cursor"]["paused"]
    assert (await call("POST", f"{BILLING}/resume")).status == 204
    assert not (await call("GET", BILLING)).json["cursor"]["paused"]


async def test_settings_that_are_left_out_stay(call: Caller, billing: None) -> None:
    before = (await call("GET", f"{BILLING}/settings")).json

    changed = await call("PATCH", f"{BILLING}/settings", {"max_deliveries": 7, "poison": "block"})

    assert changed.json == before | {"max_deliveries": 7, "poison": "block"}
    assert (await call("GET", f"{BILLING}/settings")).json == changed.json


async def test_dead_letters_go_back_where_they_came_from(
    call: Caller, broker: MemoryBroker, clock: VirtualClock, orders: None
) -> None:
    settings = {"max_deliveries": 1}
    await call("PUT", BILLING, {"start": {"origin": "earliest"}, "settings": settings})
    async with broker.connect() as client:
        async with client.subscribe("/default/orders", "billing", max_deliveries=1) as sub:
            for _ in range(5):
                await (await sub.receive(timeout=5)).nack()
        await clock.elapse(1.0)
    letters = (await call("GET", f"{TOPICS}/orders-billing-dlq/messages")).json["rows"]
    assert len(letters) == 5

    assert (await call("POST", f"{BILLING}/redrive", {"count": 2})).json == {"messages": 2}
    assert (await call("POST", f"{BILLING}/redrive")).json == {"messages": 3}
    assert (await call("POST", f"{BILLING}/redrive")).json == {"messages": 0}
    back = (await call("GET", f"{ORDERS}/messages?offset=5")).json["rows"]
    assert sorted(row["payload"] for row in back) == ["m0", "m1", "m2", "m3", "m4"]


@pytest.mark.parametrize("action", ["seek", "pause", "resume", "settings"])
async def test_a_subscription_that_is_not_there_is_not_found(
    action: str, call: Caller, orders: None
) -> None:
    method = "PATCH" if action == "settings" else "POST"
    body = {"to": {"origin": "latest"}} if action == "seek" else {}

    answer = await call(method, f"{BILLING}/{action}", body)

    assert answer.error == (404, 3004, "SubscriptionNotFoundError")


async def test_subscriptions_are_listed_by_topic_whether_it_is_there_or_not(
    call: Caller, billing: None
) -> None:
    some = (await call("GET", f"{API}/subscriptions?topic=orders")).json["rows"]
    none = (await call("GET", f"{API}/subscriptions?topic=/default/nothing")).json["rows"]

    assert [row["subscription"] for row in some] == ["billing"]
    assert none == []


# Timelines


async def test_a_cron_topic_is_made_and_described(call: Caller) -> None:
    made = await call("PUT", f"{TOPICS}/jobs", {"kind": "cron", "max_leases": 3})

    assert made.status == 201
    assert (made.json["kind"], made.json["timeline"]["max_leases"]) == ("cron", 3)
    assert [row["topic"] for row in (await call("GET", f"{API}/topics?kind=cron")).json["rows"]]


async def test_what_is_there_already_may_be_refused(call: Caller) -> None:
    first = await call("PUT", f"{TOPICS}/jobs?exist_ok=false", {"kind": "cron"})
    again = await call("PUT", f"{TOPICS}/jobs?exist_ok=false", {"kind": "cron"})
    shop = await call("PUT", f"{API}/namespaces/default?exist_ok=false")

    assert first.status == 201
    assert again.error == (409, 4001, "TopicExistsError")
    assert shop.error == (409, 4004, "NamespaceExistsError")


async def test_a_timeline_is_made_listed_described_and_removed(call: Caller) -> None:
    body = {"kind": "timeline", "max_lease_ms": 5_000, "dead_letter_topic": "/default/bad"}
    made = await call("PUT", f"{TOPICS}/later", body)
    again = await call("PUT", f"{TOPICS}/later", body)
    other = await call("PUT", f"{TOPICS}/later", {"kind": "timeline"})
    await call("PUT", f"{TOPICS}/jobs", {"kind": "priority", "max_leases": 0})
    await call("PUT", ORDERS, {"kind": "stream"})
    every = (await call("GET", f"{API}/topics")).json["rows"]
    timelines = (await call("GET", f"{TOPICS}?kind=timeline&pattern=/default/*")).json["rows"]
    described = (await call("GET", f"{TOPICS}/later")).json

    assert (made.status, again.status) == (201, 200)
    assert other.error == (409, 4001, "TopicExistsError")
    assert [(row["topic"], row["kind"]) for row in every] == [
        ("/default/jobs", "priority"),
        ("/default/later", "timeline"),
        ("/default/orders", "stream"),
    ]
    assert [row["topic"] for row in timelines] == ["/default/later"]
    assert (described["kind"], described["partitions"]) == ("timeline", 0)
    assert described["timeline"]["lease_ms_max"] == 5_000
    assert described["reports"][0]["timeline"]["lateness_count"] == 0
    assert (await call("GET", f"{API}/namespaces/default")).json["topics"] == 3
    assert (await call("DELETE", f"{TOPICS}/later")).status == 204
    assert (await call("GET", f"{TOPICS}/later")).status == 404


async def test_pages_have_timelines_among_other_topics(call: Caller) -> None:
    for number, kind in enumerate(("timeline", "live", "priority", "live")):
        await call("PUT", f"{TOPICS}/t{number}", {"kind": kind})
    first = (await call("GET", f"{API}/topics?limit=2")).json
    second = (await call("GET", f"{API}/topics?limit=2&after={first['next']}")).json

    rows = [row["topic"] for row in first["rows"] + second["rows"]]
    assert rows == [f"/default/t{number}" for number in range(4)]
    assert second["next"] == ""


@pytest.mark.parametrize(
    ("method", "path", "body"),
    [
        ("PUT", "", {"kind": "live"}),
        ("POST", "/purge", {}),
        ("PUT", "/partitions", {"partitions": 2}),
        ("POST", "/messages", {"payload": "x"}),
    ],
)
async def test_a_timeline_is_nothing_else(
    call: Caller, method: str, path: str, body: dict[str, object]
) -> None:
    await call("PUT", f"{TOPICS}/later", {"kind": "timeline"})
    answer = await call(method, f"{TOPICS}/later{path}", body)

    assert answer.error == (400, 1013, "WrongKindError")


@pytest.mark.parametrize("resource", [f"{TOPICS}/orders", BILLING, f"{BILLING}/settings"])
async def test_a_change_without_a_setting_is_refused(
    resource: str, call: Caller, billing: None
) -> None:
    answer = await call("PATCH", resource, {})

    assert answer.error == (400, 1007, "BadRequestError")
    assert "no setting is given: say what is to change" in str(answer.json)


async def test_settings_of_a_subscription_change_and_the_others_stay(
    call: Caller, billing: None
) -> None:
    before = (await call("GET", BILLING)).json
    body = {"filters": {"a": "1"}, "policy": "random", "settings": {"max_deliveries": 9}}
    answer = await call("PATCH", BILLING, body)

    assert answer.status == 200
    after = (await call("GET", BILLING)).json
    assert (after["filters"], after["policy"]) == ({"a": "1"}, "random")
    assert after["cursor"]["settings"] == before["cursor"]["settings"] | {"max_deliveries": 9}
    assert (await call("PATCH", BILLING, {"policy": "fair"})).status == 400
    missing = f"{BILLING}-not-there"
    assert (await call("PATCH", missing, body)).error == (404, 3004, "SubscriptionNotFoundError")
