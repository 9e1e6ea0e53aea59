"""Live topics and their subscriptions, requests and replies."""
