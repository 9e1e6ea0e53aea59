"""The link to a broker: sockets, tokens, reconnects, futures."""
