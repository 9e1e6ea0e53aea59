"""One file of SQLite, as everything here that keeps one makes, opens and copies it."""

from ister.database.file import (
    SETTINGS,
    Format,
    check_format,
    connect,
    copied,
    copy_to,
    make_file,
    transaction,
    translated,
)
from ister.database.salvage import Rows, is_intact

__all__ = [
    "SETTINGS",
    "Format",
    "Rows",
    "check_format",
    "connect",
    "copied",
    "copy_to",
    "is_intact",
    "make_file",
    "transaction",
    "translated",
]
