"""Which segment holds what of each topic, and what can be told from that without reading."""
