"""Transactions, stages, and series of what is published from stages."""
