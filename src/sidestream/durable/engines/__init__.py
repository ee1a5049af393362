"""Engines, which decide which worker executes a run and when: their protocol, `open_engine`, and two engines."""
