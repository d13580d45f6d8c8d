"""Plans as data, the tasks that they consist of, and the scheduler that decides their
order. Pure.
"""
