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
        if count := self._grown("ids", budgets.ids, now_ms):
            self._logger.warning(
                "message_ids_forgotten",
                count=count,
                hint="shorten the dedup window of topics with many ids, or raise message_ids_max",
            )
        if size_bytes := self._grown("producers", budgets.producers, now_ms):
            self._logger.warning(
                "producers_forgotten",
                size_bytes=size_bytes,
                hint="reuse producer names after a restart, or raise producers_bytes_max",
            )
        if count := self._grown("keys", budgets.keys, now_ms):
            self._logger.warning(
                "key_offsets_forgotten",
                count=count,
                hint="expected_key_offset is refused for unknown keys; raise key_offsets_max",
            )

    def _grown(self, name: str, budget: SharedBudget, now_ms: int) -> int:
        """Return how much was forgotten since the last line about it, which is due if any was."""
        grown = budget.forgotten - self._logged.get(name, 0)
        if grown > 0:
            self._logged_ms = now_ms
            self._logged[name] = budget.forgotten
        return grown
