"""Requests and answers of the asyncio client."""
