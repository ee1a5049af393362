"""The durable state of runs: control messages, jobs, deadlines, leases and fences.

May import `store` and the layers below it, but neither engines nor workers.
"""
