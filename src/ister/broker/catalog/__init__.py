"""What the broker has: namespaces, topics, and who is subscribed to them."""
