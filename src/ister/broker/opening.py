"""Opens the vault of a data folder or of an object store. Blocks: reads the journal."""

from collections.abc import Callable

from ister.base import Clock
from ister.broker.compactor import UPLOAD_AFTER_MS
from ister.broker.ledger import Ledger
from ister.broker.tail import TailBudget
from ister.broker.vault import Vault, Workers
from ister.log import ChunkBackend, Entry, FileBackend, LogOptions, open_log


def open_vault(
    backend: FileBackend | ChunkBackend,
    options: LogOptions,
    *,
    workers: Callable[[], Workers],
    clock: Clock,
    budget: TailBudget,
    call_soon: Callable[[Callable[[], object]], object],
    upload_after_ms: int = UPLOAD_AFTER_MS,
    on_entry: Callable[[Entry], object] | None = None,
) -> Vault:
    """Open a log, replay it into a ledger, and return both ready for use.

    `on_entry` sees every entry that is replayed, for whoever shows how far that is.
    Raises `CorruptedError`, `EncryptionKeyError` or `OSError` with nothing changed.
    """
    ledger = Ledger()

    def apply(entry: Entry) -> None:
        ledger.apply(entry)
        if on_entry is not None:
            on_entry(entry)

    log = open_log(backend, options, restore=ledger.restore, apply=apply)
    return Vault(
        log,
        ledger,
        workers=workers(),
        clock=clock,
        budget=budget,
        call_soon=call_soon,
        upload_after_ms=upload_after_ms,
    )
