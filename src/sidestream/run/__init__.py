"""The run, which carries out the commands of a turn.

May import `results`, `turn`, `providers` (the protocol only), `tools`, `messages`, `stream` and what is below them.
Sockets and stores are passed in.
"""
