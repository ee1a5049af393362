"""Engines decide who executes a run and when: their protocol, how one is opened, and the two of this package."""
