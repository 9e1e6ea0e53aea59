"""A pipeline file, or the arguments of a decorated function, to a `Definition`."""
