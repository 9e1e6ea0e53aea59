"""Logs that message ids, producers or keys were forgotten before their time, to make room."""

from typing import Any

import structlog

from ister.broker.state import Budgets, SharedBudget

# How often a line says so.
INTERVAL_MS = 60_000


class ForgottenLog:
    """What has been forgotten since the last line."""

    def __init__(self) -> None:
        self._logged: dict[str, int] = {}
        self._logged_ms = -INTERVAL_MS
        self._logger: Any = structlog.get_logger("storage")

    def check(self, budgets: Budgets, now_ms: int) -> None:
        """Log what was forgotten, if anything was and the last line is long enough ago."""
        if now_ms - self._logged_ms < INTERVAL_MS:
            return
        rows: list[tuple[str, str, SharedBudget, str]] = [
            (
                "message_ids_forgotten",
                "count",
                budgets.ids,
                "shorten the dedup window of topics with many ids, or raise message_ids_max",
            ),
            (
                "producers_forgotten",
                "size_bytes",
                budgets.producers,
                "reuse producer names after a restart, or raise producers_bytes_max",
            ),
            (
                "key_offsets_forgotten",
                "count",
                budgets.keys,
                "expected_key_offset is refused for keys that are not known; raise key_offsets_max",
            ),
        ]
        for event, unit, budget, hint in rows:
            logged = self._logged.get(event, 0)
            if budget.forgotten > logged:
                self._logged_ms = now_ms
                self._logged[event] = budget.forgotten
                self._logger.warning(event, **{unit: budget.forgotten - logged}, hint=hint)
