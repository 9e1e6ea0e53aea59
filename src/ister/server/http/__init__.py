"""The HTTP door: metrics, health, and the administration of everything as a REST API."""

from ister.server.http.app import App
from ister.server.http.door import HttpDoor
from ister.server.http.sites import Sites

__all__ = ["App", "HttpDoor", "Sites"]
