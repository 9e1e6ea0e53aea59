"""The rule: three payments below 5, then one of 500 or more, all within ten minutes.

Thieves try a card out with small, unnoticed sums before they empty it.
"""

from collections.abc import Iterable, Mapping
from decimal import Decimal
from typing import Any

from pyspark.sql import DataFrame, Row

from ister.spark import per_key

SMALL, LARGE = Decimal(5), Decimal(500)
SMALL_COUNT = 3
WITHIN_S = 600.0


def suspicious(payments: DataFrame) -> DataFrame:
    """Return the large payments that look like those of a thief."""
    return per_key(
        payments,
        judge,
        key="card",
        state="small_s array<double>",
        returns="card string, payment_id string, amount decimal(10,2), at timestamp",
        # Payments older than ten minutes do not matter any more: drop the state then.
        timeout="10 minutes",
        time="at",
    )


def judge(
    card: str, payments: list[Row], state: Mapping[str, Any] | None
) -> tuple[Iterable[Mapping[str, Any]], Mapping[str, Any] | None]:
    """Return the alerts of one card, and the times of its last small payments, in seconds.

    A plain function: `judge("card-1", [Row(...), Row(...)], None)` is a test of it.
    """
    small_s: list[float] = list(state["small_s"]) if state else []
    alerts = []
    for payment in sorted(payments, key=lambda row: row["at"]):
        at_s = payment["at"].timestamp()
        if payment["amount"] < SMALL:
            small_s = [*small_s, at_s][-SMALL_COUNT:]
        elif payment["amount"] >= LARGE and is_tried_out(small_s, at_s):
            names = ("payment_id", "amount", "at")
            alerts.append({"card": card} | {name: payment[name] for name in names})
    return alerts, {"small_s": small_s} if small_s else None


def is_tried_out(small_s: list[float], at_s: float) -> bool:
    """Whether the last small payments were made a few minutes before `at_s`."""
    return len(small_s) == SMALL_COUNT and at_s - small_s[0] <= WITHIN_S
