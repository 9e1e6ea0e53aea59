"""A consumer: its credit and queue, and the rules of joining a subscription."""
