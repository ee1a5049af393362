"""Executes runs: the worker, its service, and the reconciler that enqueues abandoned runs.

May import `log` and the engine protocol.
"""
