"""A checkpoint on this machine: one process at a time uses it, and the pipeline must fit it.

Both are checked before Spark starts. Of a checkpoint elsewhere only Spark itself complains.
"""

import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from ister.base.errors import PipelineRunningError
from ister.spark.pipelines import processes
from ister.spark.pipelines.analysis import (
    SHUFFLE_PARTITIONS,
    Fingerprint,
    check_upgrade,
    fingerprint,
    parse_fingerprint,
)
from ister.spark.pipelines.config import Definition, RunOptions
from ister.spark.pipelines.runtime.progress import ProgressView
from ister.spark.tuning import cores_of, is_local_folder

FINGERPRINT_FILE = "pipeline.json"
LOCK_FILE = "pipeline.lock"


def prepare(definition: Definition, options: RunOptions, view: ProgressView) -> None:
    """Compare a pipeline with its checkpoint and write down its shape for the next time.

    Only of a checkpoint on this machine; elsewhere Spark alone complains. A sink that has not begun
    its first batch has no checkpoint that anything could be at odds with: a mistake in SQL may be
    mended after the run that found it.
    """
    folder = local_checkpoint(definition, options)
    if folder is None:
        return
    file = folder / FINGERPRINT_FILE
    defaults = {SHUFFLE_PARTITIONS: str(cores_of(options.master or "local[*]"))}
    saved = _load_fingerprint(file)
    begun = [sink.name for sink in definition.sinks if has_begun(folder, sink.name)]
    if options.start is not None and begun:
        view.say(
            f"pipeline {definition.name}: warning: --from {options.start} is not followed by "
            f"{', '.join(begun)}: it goes on from the checkpoint in {folder}; to start over, give "
            "another place with --checkpoint"
        )
    shapes = saved.shapes if saved is not None else {}
    shapes = {name: shape for name, shape in shapes.items() if has_begun(folder, name)}
    if saved is None or not shapes:
        kept = fingerprint(definition, defaults)
    else:
        kept, remarks = check_upgrade(definition, replace(saved, shapes=shapes), defaults)
        for remark in remarks:
            view.say(f"pipeline {definition.name}: {remark}")
    fresh = file.with_suffix(".new")
    fresh.write_text(json.dumps(kept.to_json(), indent=1), encoding="utf-8")
    fresh.replace(file)


def _load_fingerprint(file: Path) -> Fingerprint | None:
    try:
        return parse_fingerprint(json.loads(file.read_text("utf-8")))
    except (FileNotFoundError, ValueError):
        # Not there yet, or somebody has written something else into it: nothing to compare with.
        return None


def has_begun(folder: Path, name: str) -> bool:
    """Whether Spark has planned a batch of a sink: from then on its checkpoint binds."""
    offsets = folder / name / "offsets"
    return offsets.is_dir() and any(path.name.isdecimal() for path in offsets.iterdir())


def local_checkpoint(definition: Definition, options: RunOptions) -> Path | None:
    """Return the folder of the checkpoint, if it is one of this machine; it is there then."""
    if not is_local_folder(definition.checkpoint, options.master or "local[*]"):
        return None
    folder = Path(re.sub(r"^file:(//)?", "", definition.checkpoint))
    folder.mkdir(parents=True, exist_ok=True)
    return folder


@contextmanager
def lock_checkpoint(folder: Path, name: str) -> Iterator[None]:
    lock = processes.lock_file(folder / LOCK_FILE)
    if lock is None:
        raise PipelineRunningError(name, 0)
    with lock:
        yield
