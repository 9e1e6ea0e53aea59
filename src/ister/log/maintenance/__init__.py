"""Work on whole logs: when to compact, verification, relocation, re-encryption, salvage."""
