"""What the HTTP API offers, resource by resource."""

from ister.server.http.resources.table import ROUTES

__all__ = ["ROUTES"]
