"""Where bytes are kept: local disk, memory and object stores, and the keys to encrypt them.

Everything here blocks and may be called from any thread. The ports are those of `ister.log`.
"""

from ister.objects.backup import BackupContents, Copied, SourceFile, back_up, load_contents, restore
from ister.objects.folder import LocalStore
from ister.objects.keyring import FileKeyring
from ister.objects.local import LocalDisk, LocalFile, make_folder
from ister.objects.memory import MemoryDisk, MemoryFile
from ister.objects.opening import open_store, store_options, verify_store
from ister.objects.verified import VerifiedStore

__all__ = [
    "BackupContents",
    "Copied",
    "FileKeyring",
    "LocalDisk",
    "LocalFile",
    "LocalStore",
    "MemoryDisk",
    "MemoryFile",
    "SourceFile",
    "VerifiedStore",
    "back_up",
    "load_contents",
    "make_folder",
    "open_store",
    "restore",
    "store_options",
    "verify_store",
]
