"""Hosts by their names alone: nobody is asked."""

import ipaddress


def is_loopback(host: str) -> bool:
    """Whether a host is this machine for certain; any other name may be any address."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host.lower() == "localhost"
