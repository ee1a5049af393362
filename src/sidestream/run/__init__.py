"""The run: carries out the commands of a turn, and folds the stream into chunks and results.

May import `turn`, `providers` (the protocol only), `tools`, `messages`, `stream` and the modules at the root of
`sidestream`. Sockets and stores are passed in.
"""
