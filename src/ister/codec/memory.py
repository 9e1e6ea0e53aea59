"""Keeps the C library from giving memory back to the system after every batch.

glibc returns freed memory at the end of its heap above a threshold that starts at 128 KiB, and
each batch then maps its pages anew, one fault for every 4 KiB: as costly as copying the batch.
Freeing one large block raises that threshold for good (mallopt(3), M_MMAP_THRESHOLD), here to
2 × 16 MiB. The block itself is never touched, so it costs no memory. Other C libraries do not
care.
"""

# At most 32 MiB of freed memory stay with the process: a few windows of batches.
_BLOCK_BYTES = 16 * 1024 * 1024


def keep_freed_memory() -> None:
    """Do so from now on. Harmless to repeat."""
    bytes(_BLOCK_BYTES)
