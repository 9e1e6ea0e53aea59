"""The HTTP door: metrics, health, and the administration of everything as a REST API."""

from ister.server.http.app import App
from ister.server.http.door import HttpDoor

__all__ = ["App", "HttpDoor"]
