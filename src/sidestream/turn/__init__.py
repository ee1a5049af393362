"""The turn, a state machine without I/O, with its state as plain data and the reducer that it shares with the log.

May import `providers` (the protocol only), `tools`, `messages`, `stream` and the modules at the root of `sidestream`.
"""
