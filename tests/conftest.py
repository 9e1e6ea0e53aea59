"""Settings for the whole test run: how hard the property tests try."""

from hypothesis import HealthCheck, settings

# A deadline per example measures the machine, not the code: a busy one would fail a good test.
settings.register_profile("quick", deadline=None, print_blob=True)
# `make fuzz`: some minutes instead of seconds.
settings.register_profile(
    "fuzz",
    deadline=None,
    print_blob=True,
    max_examples=10_000,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("quick")
