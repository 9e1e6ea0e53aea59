"""Timelines of the asyncio client."""
