"""Live topics against nats-server and a plain TCP relay."""
