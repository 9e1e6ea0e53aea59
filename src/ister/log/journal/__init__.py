"""The open end of a log, on a disk or in an object store, and how it is found again."""
