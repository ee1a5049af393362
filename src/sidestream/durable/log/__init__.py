"""What durable runs keep in the log: control messages, jobs, deadlines, leases, fences.

May import `store` and what is below it; knows no engine and no worker.
"""
