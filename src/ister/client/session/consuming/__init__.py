"""The receiving half: what was delivered, what was leased, and what is said about it."""
