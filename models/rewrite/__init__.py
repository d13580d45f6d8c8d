"""A network in simpler operators: those that cannot be divided are replaced by some that can.

Each rule keeps what the network computes (to rounding, where sums are taken in another order).
Splits are compared to the answer of the original model.
"""
