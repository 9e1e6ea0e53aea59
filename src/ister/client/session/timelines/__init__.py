"""Timelines: changes by owners, consumers with leases, and the clock of the broker."""
