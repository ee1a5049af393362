"""The ways that are measured: one module for each library, run in the environment of that library.

A module has `PLAYERS`: name → wire → `async def play(url, take)`, which requests the answer at `url` and passes each
piece of its text to `take`; and `PROGRAMS`: name → `async def program(url, task)`, which returns what it received.
"""
