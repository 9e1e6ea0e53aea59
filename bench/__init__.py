"""Benchmarks of Ister against the tools people would otherwise choose.

Each benchmark measures both sides in one run on one machine and prints ratios: absolute figures
belong to the machine, ratios to the code. `live.py` is the one for live topics, `streams.py`
the one for stored ones, `timeline.py` the one for messages at a point in time.
"""
