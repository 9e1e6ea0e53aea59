"""Opens the storage of a data folder or of an object store. Blocks: reads the journal."""

from collections.abc import Callable

from ister.base import Clock
from ister.broker.state import Budgets, State
from ister.broker.storage.compactor import UPLOAD_AFTER_MS
from ister.broker.storage.storage import Storage
from ister.broker.storage.threads import Workers
from ister.log import ChunkBackend, Entry, FileBackend, LogOptions, open_log


def open_storage(
    backend: FileBackend | ChunkBackend,
    options: LogOptions,
    *,
    workers: Callable[[], Workers],
    clock: Clock,
    call_soon: Callable[[Callable[[], object]], object],
    upload_after_ms: int = UPLOAD_AFTER_MS,
    on_entry: Callable[[Entry], object] | None = None,
    budgets: Budgets | None = None,
    before_take_over: Callable[[State], object] = lambda _: None,
) -> Storage:
    """Open a log, replay it into a state, and return both ready for use.

    `on_entry` sees every entry that is replayed, to show progress. All storages of a broker have
    the same `budgets`. `before_take_over` gets the state of an object store before
    anything is written there; when it raises an error, the running owner stays the owner.
    Raises what `open_log` does.
    """
    state = State(budgets)

    def reset() -> None:
        nonlocal state
        state.close()
        state = State(budgets)

    def restore(snapshot: bytes) -> None:
        state.restore(snapshot, now_ms=clock.now_ms())

    def apply(entry: Entry) -> None:
        state.apply(entry)
        if on_entry is not None:
            on_entry(entry)

    log = open_log(
        backend,
        options,
        restore=restore,
        apply=apply,
        reset=reset,
        before_take_over=lambda: before_take_over(state),
    )
    state.drop_dead_cursors()
    return Storage(
        log,
        state,
        workers=workers(),
        clock=clock,
        call_soon=call_soon,
        upload_after_ms=upload_after_ms,
    )
