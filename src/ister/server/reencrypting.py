"""Re-encryption of a log whose broker is stopped: afterwards it needs the newest key only.

Every segment under another key is rewritten, as compaction does that, each with a checkpoint of its
own. So the process may be killed at any step: what was done by then stays done, and the next run
goes on from there. The manifests and snapshots that are kept make room for new ones.

What is not encrypted although there is a key file, because it was written before, counts as under
another key.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from ister.broker import StoppedLog
from ister.log import (
    KEPT_COUNT,
    ChunkBackend,
    FileBackend,
    KeyUse,
    LogOptions,
    find_keys,
    plan_reencryption,
)
from ister.objects import FileKeyring


@dataclass(frozen=True, slots=True)
class Reencryption:
    """What was done."""

    # The keys in use afterwards.
    keys: dict[str, KeyUse]
    segments: int = 0
    written_bytes: int = 0


def has_other_keys(keys: Mapping[str, KeyUse], keyring: FileKeyring) -> bool:
    """Tell whether something is under another key than the newest, or under none."""
    return bool(keys.keys() - {keyring.ids[-1]})


def reencrypt(
    backend: FileBackend | ChunkBackend,
    options: LogOptions,
    keyring: FileKeyring,
    *,
    on_progress: Callable[[str, int], object] = lambda _, __: None,
) -> Reencryption:
    """Rewrite everything that is not under the newest key of `keyring`. Blocks.

    Nobody else may have the log; one in an object store is taken over. `on_progress` is called with
    the name and size of each segment before it is read. Raises what `StoppedLog` does, `OSError`,
    and `CorruptedError` for a segment that is damaged. Then what was rewritten stays so.
    """
    key = keyring.ids[-1]
    count = written_bytes = 0
    stopped = StoppedLog(backend, options)
    log = stopped.log
    try:
        if log.index.open_segment is not None:
            # It is sealed, and the next one begun, which has the newest key.
            stopped.record()
        stopped.checkpoint()
        old = {s for s in log.index.segments if log.reader.opened(s).envelope.key_id != key}
        while rewrite := plan_reencryption(log, log.state(), stopped.horizon, old):
            for segment in rewrite.segments:
                on_progress(segment.name, segment.size_bytes)
            rewrite.run()
            log.rewritten(rewrite)
            stopped.checkpoint()
            count += rewrite.figures.segments_in
            written_bytes += rewrite.figures.written_bytes
        for _ in range(KEPT_COUNT):
            stopped.checkpoint()
    finally:
        stopped.close()
    keys = find_keys(backend, keyring=keyring, remote=options.remote)
    return Reencryption(keys, count, written_bytes)
