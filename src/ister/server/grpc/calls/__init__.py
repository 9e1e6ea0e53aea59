"""A gRPC server in the broker's event loop: sessions, calls, status."""
