"""The turn: a state machine without I/O, its state as plain data, and the ledger that both it and the log use.

May import `providers` (the protocol only), `tools`, `messages`, `stream` and the modules at the root of `sidestream`.
"""
