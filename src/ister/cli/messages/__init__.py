"""Commands that send, receive and copy messages."""
