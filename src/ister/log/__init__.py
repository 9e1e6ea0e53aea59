"""The durable log: journal, segments, manifest, recovery, reading. Plain blocking code.

Spec of the bytes: docs/journal-format.md.
"""

from ister.log.backend import ChunkBackend, FileBackend, Readable
from ister.log.check import CheckReport, Problem, check_folder
from ister.log.checkpoint import Checkpoint
from ister.log.compaction import CompactionPolicy, plan_compaction, plan_reencryption
from ister.log.copying import FilePart
from ister.log.encryption_keys import NO_KEY, KeyUse, find_keys
from ister.log.entry import Entry, Kind, TransactionBatch, parse_transaction
from ister.log.group import Group, SeriesPart
from ister.log.log import Log, SegmentRow
from ister.log.manifest import KEPT_COUNT
from ister.log.opening import open_log
from ister.log.options import LogOptions
from ister.log.ports import Buffer, Cipher, Disk, File, Keyring, Store
from ister.log.reading import ReadPlan, Stored
from ister.log.recovery import RecoveryReport
from ister.log.relocation import plan_relocation
from ister.log.rewriting import KeyPolicy, Rewrite, RewriteFigures
from ister.log.salvage import Survey, survey_folder
from ister.log.salvage_file import FoundFile, split_window
from ister.log.sealed import SealedReader, sealed_span
from ister.log.segment import Form, Place, Span
from ister.log.space import is_disk_full

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
