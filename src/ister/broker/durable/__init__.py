"""Durable subscriptions: what each topic has for their consumers, until it is acknowledged."""
