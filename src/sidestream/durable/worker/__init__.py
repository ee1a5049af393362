"""Executes runs: one worker, its service, and the reconciler that takes over what others left.

May import `log` and the engines' protocol.
"""
