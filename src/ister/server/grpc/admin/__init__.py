"""Danube's admin API."""
