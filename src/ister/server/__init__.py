"""Doors into the broker, and the start-up of a broker process."""

from ister.objects import store_options
from ister.server.backups import ask_for_backup
from ister.server.reencrypting import Reencryption, has_other_keys, reencrypt
from ister.server.restoring import check_restored, restore_folder
from ister.server.serve import Addresses, run_broker, run_server

__all__ = [
    "Addresses",
    "Reencryption",
    "ask_for_backup",
    "check_restored",
    "has_other_keys",
    "reencrypt",
    "restore_folder",
    "run_broker",
    "run_server",
    "store_options",
]
