"""Asking the store: commits in groups, questions one at a time, and where calls are made."""

from ister.broker.timelines.store.committer import WAITING_BYTES_MAX, Committer
from ister.broker.timelines.store.reads import Reads
from ister.broker.timelines.store.workers import StoreWorker, WithStore

__all__ = ["WAITING_BYTES_MAX", "Committer", "Reads", "StoreWorker", "WithStore"]
