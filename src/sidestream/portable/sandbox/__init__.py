"""Containers in which code runs on this machine: isolated by bubblewrap, gVisor or an interpreter without system calls.

`port` is what a sandbox must be, `choice` picks one, `containers` keeps what runs. Imports no provider.
"""
