"""Rules of topics: which partition a message goes to."""

from ister.topics.routing import Router, fnv1a

__all__ = ["Router", "fnv1a"]
