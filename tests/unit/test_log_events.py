"""No client can fill the log: an event that clients can cause at will is throttled.

A throttled event has a field `times`, which comes from `ister.telemetry.Occasions`. Every other
event of the broker and its doors is listed here, with the reason why clients cannot cause it at
will. A new event that is neither throttled nor listed fails this test.
"""

import ast
from collections.abc import Iterator
from pathlib import Path

PACKAGE = Path(__file__).resolve().parents[2] / "src" / "ister"
LEVELS = {"debug", "info", "warning", "warn", "error", "exception", "critical", "log", "msg"}

# By file. The reasons:
# - once: at the start, at the end, or when an operator changes a file;
# - storage: a disk or a store fails, is full or recovers; logged on a change, or once a second;
# - upkeep: the work between two lines is large, or a timer of a second or more is between them;
# - bug: only a mistake of ours causes it, and the traceback is needed;
# - debug: one line for each connection, which an operator asks for with `--log-level debug`.
NOT_AT_WILL = {
    "broker/streams/forgotten.py": {  # upkeep
        *("message_ids_forgotten", "producers_forgotten", "key_offsets_forgotten"),
    },
    "broker/streams/streams.py": {"internal_error"},  # bug
    "broker/streams/upkeep.py": {"upkeep_failed"},  # upkeep
    "broker/durable/subscription.py": {"read_failed"},  # storage
    "broker/subscriptions/durables.py": {"internal_error"},  # bug
    "server/operations/dispatcher.py": {"operation"},  # debug
    "broker/storage/compactor.py": {"compaction_failed", "compacted"},  # upkeep
    "broker/storage/committer.py": {
        *("storage_failed", "storage_lost", "storage_still_failed", "storage_recovered"),  # storage
        "internal_error",  # bug
    },
    "broker/storage/storage.py": {
        *("reserve_not_made", "disk_full", "disk_has_room", "owner_not_known"),  # storage
        *("checkpoint_failed", "sweep_failed"),  # storage
    },
    "broker/timelines/cron/rules.py": {"cron_not_loaded"},  # storage
    "broker/timelines/timelines.py": {"clock_set"},  # upkeep
    "broker/timelines/store/committer.py": {
        *("timelines_failed", "timelines_recovered", "timelines_full", "timelines_have_room"),
        "internal_error",  # bug
    },
    "broker/delayed/delays.py": {"delayed_waiting", "internal_error"},  # storage, bug
    "server/backups.py": {
        # Asked for over a socket of the data folder, which is the operator's alone.
        "backup_pinned",
        *("backups_not_possible", "internal_error"),  # once, bug
    },
    "server/certificates.py": {  # once
        *("certificate_not_read", "certificate_read", "tls_key_open_to_others"),
    },
    "server/grpc/admin/settings.py": {"settings_not_readable"},  # once
    "server/grpc/producers.py": {"topic_not_made_again"},  # once
    "server/grpc/roll.py": {"clients_not_kept", "client_not_readable"},  # storage, once
    "server/native/door.py": {"client_connected", "client_disconnected"},  # debug
    "server/security.py": {"tokens_not_read", "tokens_read"},  # once
    "server/serve.py": {  # once
        *("broker_ready", "broker_closing", "broker_closed", "broker_forced"),
        *("door_missing", "file_limit_low"),
    },
    "server/storage.py": {  # once
        *("storage_not_opened", "storage_not_closed", "storage_opened", "timelines_not_closed"),
        *("timelines_unused", "log_not_encrypted", "tier_not_verified", "torn_tail_cut"),
        *("upkeep_abandoned", "checkpoint_abandoned"),
    },
    "server/store_process.py": {
        *("timelines_not_closed", "timelines_process_ended"),  # once
        "internal_error",  # bug
    },
}


def events(tree: ast.Module) -> Iterator[tuple[int, str, bool]]:
    """Yield line, name and whether it is throttled of each event that a module logs."""
    for node in ast.walk(tree):
        match node:
            case ast.Call(
                func=ast.Attribute(
                    value=ast.Name(id=owner) | ast.Attribute(attr=owner), attr=level
                ),
                args=[*arguments],
            ) if owner.lstrip("_") == "logger" and level in LEVELS:
                match arguments:
                    case [ast.Constant(value=str(name))]:
                        pass
                    case _:
                        name = "not a literal"
                yield node.lineno, name, any(word.arg == "times" for word in node.keywords)


def unthrottled(tree: ast.Module, allowed: set[str]) -> set[str]:
    """Return the events of a module that are neither throttled nor allowed."""
    return {name for _, name, throttled in events(tree) if not throttled} - allowed


def modules() -> dict[str, ast.Module]:
    paths = [path for folder in ("broker", "server") for path in (PACKAGE / folder).rglob("*.py")]
    return {
        path.relative_to(PACKAGE).as_posix(): ast.parse(path.read_text(encoding="utf-8"))
        for path in sorted(paths)
    }


def allowed(file: str) -> set[str]:
    return NOT_AT_WILL.get(file, set())


def test_events_that_clients_can_cause_at_will_are_throttled() -> None:
    offences = {file: unthrottled(tree, allowed(file)) for file, tree in modules().items()}

    hint = "throttle them with `Occasions.times`, or list why clients cannot cause them at will"
    assert {file: names for file, names in offences.items() if names} == {}, hint


def test_listed_events_exist() -> None:
    logged = {file: {name for _, name, _ in events(tree)} for file, tree in modules().items()}
    gone = {file: names - logged.get(file, set()) for file, names in NOT_AT_WILL.items()}

    assert {file: names for file, names in gone.items() if names} == {}


def test_unthrottled_event_is_found() -> None:
    source = """
logger.info("listed")
self._logger.warning("throttled", times=times)
self.door._logger.error("forgotten", reason=reason)
logger.exception(name)
"""

    assert unthrottled(ast.parse(source), {"listed"}) == {"forgotten", "not a literal"}
