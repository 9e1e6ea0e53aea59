"""When leases are renewed, on streams and on timelines."""

# For how long a lease is renewed while the application settles nothing of it. A handler that
# takes longer than 20 ack timeouts is more likely stuck than slow, and what it holds must get to
# another consumer some time; one that is slow says so by `extend`, or by a higher `max_renewal`.
MAX_RENEWAL_MS = 600_000

# Renewed at two thirds of its time: a lost connection may take the last third to come back.
# Those due within the next twelfth go along, so that there are few frames and timers.
RENEWAL_SLACK = 12
