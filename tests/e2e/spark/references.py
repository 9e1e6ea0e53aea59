"""What the example pipelines must give, in plain Python from the same lines: no Spark in here.

Spark reads one wave after the other, each in one batch; the rules follow from that:
- the watermark is the newest time of all waves before, less the delay; none before the first;
- a row at or before the watermark is late, a window whose end is not after it is final;
- a wave's own rows move the watermark only once the wave is done: then final windows come out.

The lines are as the generators make them. Rows are JSON objects with times as aware datetimes and
money as `Decimal`.
"""

import csv
import json
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

Row = Mapping[str, Any]
LONG_AGO = datetime(1970, 1, 1, tzinfo=UTC)
MINUTE = timedelta(minutes=1)
TIMES = {"at", "minute", "ordered_at", "paid_at", "began", "ended"}


def parsed(line: str | bytes) -> dict[str, Any]:
    """Return the object of a line: `at` and other times as datetimes, numbers as decimals."""
    row: dict[str, Any] = json.loads(line, parse_float=Decimal)
    for name, value in row.items():
        if name in TIMES and value is not None:
            row[name] = datetime.fromisoformat(value)
    return row


def readable(lines: Iterable[str], *, is_good: Callable[[Row], bool]) -> list[Row]:
    """Return the rows of the lines that hold one."""
    found: list[Row] = []
    for line in lines:
        try:
            row = parsed(line)
        except ValueError:
            continue
        if is_good(row):
            found.append(row)
    return found


def broken(lines: Iterable[str], *, is_good: Callable[[Row], bool]) -> list[str]:
    """Return the lines that hold no row."""
    return [line for line in lines if not readable([line], is_good=is_good)]


def by_wave(
    waves: Sequence[Sequence[Row]], delay: timedelta
) -> Iterator[tuple[Sequence[Row], datetime, datetime]]:
    """Yield each wave with the watermark its rows are judged by, and the one after it."""
    before = LONG_AGO
    for rows in waves:
        after = max([before, *(row["at"] - delay for row in rows)])
        yield rows, before, after
        before = after


def without_copies(rows: Iterable[Row], seen: set[str], *, by: str) -> list[Row]:
    """Return the rows whose `by` was not seen before, and note it."""
    found = []
    for row in rows:
        if row[by] not in seen:
            seen.add(row[by])
            found.append(row)
    return found


def minute_of(row: Row) -> datetime:
    """Return the beginning of the minute of a row."""
    at: datetime = row["at"]
    return at.replace(second=0, microsecond=0)


# 1. Orders per minute.


def is_order(row: Row) -> bool:
    return isinstance(row, dict) and "order_id" in row


def orders_per_minute(waves: Sequence[Sequence[str]]) -> list[Row]:
    """Return the final minutes of each region."""
    found: list[Row] = []
    seen: set[str] = set()
    minutes: dict[tuple[datetime, str], list[Decimal]] = defaultdict(list)
    rows_by_wave = [readable(lines, is_good=is_order) for lines in waves]
    for rows, before, after in by_wave(rows_by_wave, timedelta(seconds=30)):
        in_time = [row for row in rows if row["at"] > before]
        for row in without_copies(in_time, seen, by="order_id"):
            minutes[minute_of(row), row["region"]].append(Decimal(row["amount"]))
        for minute, region in [key for key in minutes if key[0] + MINUTE <= after]:
            paid = minutes.pop((minute, region))
            found.append(
                {"minute": minute, "region": region, "orders": len(paid), "total": sum(paid)}
            )
    return found


# 2. Orders and payments.


def order_payments(waves: Sequence[Mapping[str, Sequence[str]]]) -> list[Row]:
    """Return the orders with their payment, and those that stay without for certain."""
    found: list[Row] = []
    seen: set[str] = set()
    orders: list[Row] = []
    payments: list[Row] = []
    matched: set[str] = set()
    ordered_by_wave = [[parsed(line) for line in wave["orders"]] for wave in waves]
    paid_by_wave = [[parsed(line) for line in wave["payments"]] for wave in waves]
    delay, patience = timedelta(minutes=1), timedelta(minutes=10)
    for (ordered, _, orders_after), (paid, _, payments_after) in zip(
        by_wave(ordered_by_wave, delay), by_wave(paid_by_wave, delay), strict=True
    ):
        new_orders = list(ordered)
        new_payments = without_copies(paid, seen, by="payment_id")
        pairs = [(o, p) for o in new_orders for p in [*payments, *new_payments]]
        pairs += [(o, p) for o in orders for p in new_payments]
        for order, payment in pairs:
            wait = payment["at"] - order["at"]
            if order["order_id"] == payment["order_id"] and timedelta() <= wait <= patience:
                matched.add(order["order_id"])
                found.append(with_payment(order, payment))
        orders += new_orders
        payments += new_payments
        # Both streams must be past it: the slower one may still bring the payment.
        watermark = min(orders_after, payments_after)
        for order in [one for one in orders if one["at"] + patience < watermark]:
            orders.remove(order)
            if order["order_id"] not in matched:
                found.append(with_payment(order, None))
    return found


def with_payment(order: Row, payment: Row | None) -> Row:
    """Return the row that tells of an order and its payment."""
    row = {"order_id": order["order_id"], "amount": order["amount"], "ordered_at": order["at"]}
    if payment is None:
        return row | {"payment_id": None, "paid": None, "paid_at": None, "status": "unpaid"}
    short = payment["paid"] < order["amount"]
    return row | {
        "payment_id": payment["payment_id"],
        "paid": payment["paid"],
        "paid_at": payment["at"],
        "status": "short" if short else "paid",
    }


# 3. Sessions.


def sessions(waves: Sequence[Sequence[str]]) -> list[Row]:
    """Return the visits that are over for certain."""
    found: list[Row] = []
    gap = timedelta(minutes=5)
    clicks: dict[str, list[Row]] = defaultdict(list)
    rows_by_wave = [[parsed(line) for line in lines] for lines in waves]
    for rows, before, after in by_wave(rows_by_wave, timedelta(minutes=2)):
        for row in rows:
            # A visit of this one click would be over.
            if row["at"] + gap > before:
                clicks[row["visitor"]].append(row)
        for visitor, made in clicks.items():
            still_open = []
            for visit in visits(made, gap):
                ended = visit[-1]["at"] + gap
                if ended > after:
                    still_open += visit
                    continue
                found.append(
                    {
                        "visitor": visitor,
                        "began": visit[0]["at"],
                        "ended": ended,
                        "clicks": len(visit),
                        "entry": visit[0]["page"],
                        "exit": visit[-1]["page"],
                    }
                )
            clicks[visitor] = still_open
    return found


def visits(clicks: Iterable[Row], gap: timedelta) -> list[list[Row]]:
    """Return the clicks of one visitor by visit, each in the order of time."""
    found: list[list[Row]] = []
    for row in sorted(clicks, key=lambda row: row["at"]):
        if found and row["at"] - found[-1][-1]["at"] <= gap:
            found[-1].append(row)
        else:
            found.append([row])
    return found


# 4. Fraud.


def fraud(waves: Sequence[Sequence[str]]) -> list[Row]:
    """Return the large payments that follow three small ones within ten minutes."""
    payments = {row["payment_id"]: row for lines in waves for row in map(parsed, lines)}.values()
    found: list[Row] = []
    for large in payments:
        if large["amount"] < 500:
            continue
        small = [
            row
            for row in payments
            if row["card"] == large["card"]
            and row["amount"] < 5
            and timedelta() <= large["at"] - row["at"] <= timedelta(minutes=10)
        ]
        if len(small) >= 3:
            found.append(
                {
                    "card": large["card"],
                    "payment_id": large["payment_id"],
                    "amount": large["amount"],
                    "at": large["at"],
                }
            )
    return found


# 5. Enrichment.


def is_sale(row: Row) -> bool:
    return isinstance(row, dict) and isinstance(row["quantity"], int)


def enrichment(lines: Sequence[str], products_file: Path) -> dict[str, list[Row]]:
    """Return the rows of each topic."""
    with products_file.open(newline="") as file:
        products = {row["sku"]: row for row in csv.DictReader(file)}
    found: dict[str, list[Row]] = defaultdict(list)
    for sale in readable(lines, is_good=is_sale):
        product = products.get(sale["sku"])
        if product is None:
            found["/default/sales.unknown"].append({**sale, "name": None, "total": None})
            continue
        total = sale["quantity"] * Decimal(product["price"])
        found[f"/default/sales.{product['category']}"].append(
            {**sale, "name": product["name"], "total": total}
        )
    return found


# 6. Temperatures per device and minute.


def iot_parquet(waves: Sequence[Sequence[str]]) -> list[Row]:
    """Return the final minutes of each device."""
    found: list[Row] = []
    minutes: dict[tuple[datetime, str], list[float]] = defaultdict(list)
    rows_by_wave = [[parsed(line) for line in lines] for lines in waves]
    for rows, before, after in by_wave(rows_by_wave, timedelta(minutes=1)):
        for row in rows:
            if minute_of(row) + MINUTE > before:
                minutes[minute_of(row), row["device"]].append(float(row["temperature"]))
        for minute, device in [key for key in minutes if key[0] + MINUTE <= after]:
            read = minutes.pop((minute, device))
            found.append(
                {
                    "day": minute.date(),
                    "device": device,
                    "minute": minute,
                    "readings": len(read),
                    "low": min(read),
                    # Quarters of a degree are exact in binary: so is their sum, in any order.
                    "average": sum(read) / len(read),
                    "high": max(read),
                }
            )
    return found
