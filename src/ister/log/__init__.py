"""The durable log: journal, segments, manifest, recovery, reading. Plain blocking code.

Spec of the bytes: docs/journal-format.md.
"""

from ister.log.files.entry import Entry, Kind, TransactionBatch, parse_transaction
from ister.log.files.manifest import KEPT_COUNT
from ister.log.files.options import LogOptions
from ister.log.files.ports import Buffer, Cipher, Disk, File, Keyring, Store
from ister.log.files.segment import Form, Place, Span
from ister.log.index.copying import FilePart
from ister.log.journal.backend import ChunkBackend, FileBackend, Readable
from ister.log.journal.group import Group, SeriesPart
from ister.log.journal.recovery import RecoveryReport
from ister.log.journal.space import is_disk_full
from ister.log.log import Log, SegmentRow
from ister.log.maintenance.check import CheckReport, Problem, check_folder
from ister.log.maintenance.compaction import CompactionPolicy, plan_compaction, plan_reencryption
from ister.log.maintenance.encryption_keys import NO_KEY, KeyUse, find_keys
from ister.log.maintenance.relocation import plan_relocation
from ister.log.maintenance.salvage import Survey, survey_folder
from ister.log.maintenance.salvage_file import FoundFile, split_window
from ister.log.opening import open_log
from ister.log.reading.reading import ReadPlan, Stored
from ister.log.reading.sealed import SealedReader, sealed_span
from ister.log.upkeep.checkpoint import Checkpoint
from ister.log.upkeep.rewriting import KeyPolicy, Rewrite, RewriteFigures

__all__ = [
    "KEPT_COUNT",
    "NO_KEY",
    "Buffer",
    "CheckReport",
    "Checkpoint",
    "ChunkBackend",
    "Cipher",
    "CompactionPolicy",
    "Disk",
    "Entry",
    "File",
    "FileBackend",
    "FilePart",
    "Form",
    "FoundFile",
    "Group",
    "KeyPolicy",
    "KeyUse",
    "Keyring",
    "Kind",
    "Log",
    "LogOptions",
    "Place",
    "Problem",
    "ReadPlan",
    "Readable",
    "RecoveryReport",
    "Rewrite",
    "RewriteFigures",
    "SealedReader",
    "SegmentRow",
    "SeriesPart",
    "Span",
    "Store",
    "Stored",
    "Survey",
    "TransactionBatch",
    "check_folder",
    "find_keys",
    "is_disk_full",
    "open_log",
    "parse_transaction",
    "plan_compaction",
    "plan_reencryption",
    "plan_relocation",
    "sealed_span",
    "split_window",
    "survey_folder",
]
