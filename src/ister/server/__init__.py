"""Doors into the broker, and the start-up of a broker process."""

from ister.objects import store_options
from ister.server.backups import ask_for_backup
from ister.server.reencrypting import Reencryption, has_other_keys, reencrypt
from ister.server.restoring import check_restored, restore_folder
from ister.server.salvaging import Salvaged, salvage_folder
from ister.server.serve import Addresses, run_broker, run_server

__all__ = [
    "Addresses",
    "Reencryption",
    "Salvaged",
    "ask_for_backup",
    "check_restored",
    "has_other_keys",
    "reencrypt",
    "restore_folder",
    "run_broker",
    "run_server",
    "salvage_folder",
    "store_options",
]
