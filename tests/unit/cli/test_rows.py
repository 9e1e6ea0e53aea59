"""Messages as JSON rows."""

import base64

from ister.cli.console.rows import batch_rows
from ister.codec import Batch, encode


def batch(*payloads: bytes, **columns: object) -> Batch:
    head, body = encode(payloads, producer=b"shop", **columns)  # type: ignore[arg-type]
    made = Batch(head + body)
    made.stamp(7, 1_700_000_000_000)
    made.topic = "/default/orders-part-3"
    return made


def test_a_row_has_everything_about_a_message() -> None:
    [row] = batch_rows(batch(b"one", keys=["k"], attributes=[{"a": "1"}], ids=["i"]))

    assert row == {
        "topic": "/default/orders-part-3",
        "partition": 3,
        "offset": 7,
        "key": "k",
        "attributes": {"a": "1"},
        "id": "i",
        "publish_time": "2023-11-14T22:13:20.000+00:00",
        "producer": "shop",
        "payload": "one",
    }


def test_columns_that_a_batch_does_not_have_are_empty_in_every_row() -> None:
    rows = list(batch_rows(batch(b"one", b"two")))

    assert [row["offset"] for row in rows] == [7, 8]
    assert [(row["key"], row["attributes"], row["id"]) for row in rows] == [(None, {}, None)] * 2


def test_a_payload_that_is_no_text_is_base64() -> None:
    [row] = batch_rows(batch(b"\xff\xfe"))

    assert "payload" not in row
    assert row["payload_base64"] == base64.b64encode(b"\xff\xfe").decode()
