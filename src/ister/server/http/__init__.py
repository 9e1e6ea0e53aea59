"""The HTTP door: metrics and health."""

from ister.server.http.app import App
from ister.server.http.door import HttpDoor

__all__ = ["App", "HttpDoor"]
