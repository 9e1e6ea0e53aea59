"""Commands about what a broker has: topics, subscriptions, namespaces, schemas."""
