"""`ister timeline`: messages at a point in time, and cron rules."""
