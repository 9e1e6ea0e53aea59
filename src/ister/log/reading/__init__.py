"""Reading batches back, each entry verified."""
