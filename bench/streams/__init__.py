"""Stream topics against JetStream and the plain disk."""
