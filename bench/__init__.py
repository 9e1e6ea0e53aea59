"""Benchmarks of Ister against the tools people would otherwise choose.

Each benchmark measures both contenders in one run on one machine and prints ratios: absolute
figures belong to the machine, ratios to the code. There is a folder for each benchmark; `harness`
has what they share. Run one with `make bench-live`, `make bench-streams` and so on.
"""
