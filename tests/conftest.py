"""Settings for the whole test run: how hard the property tests try.

`ISTER_TEST_PROFILE` names the profile: `quick`, which is for every change, or `thorough`, for the
night.
"""

import os

from hypothesis import HealthCheck, settings

# A deadline per example measures the machine, not the code: a busy one would fail a good test.
settings.register_profile("quick", deadline=None, print_blob=True)
settings.register_profile("thorough", settings.get_profile("quick"), max_examples=1_000)
# `make fuzz`: some minutes instead of seconds.
settings.register_profile(
    "fuzz",
    deadline=None,
    print_blob=True,
    max_examples=10_000,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile(os.environ.get("ISTER_TEST_PROFILE", "quick"))
