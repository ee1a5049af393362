"""What encoders and decoders of all providers share. Pure.

Knows no provider. Imports the protocol in `sidestream.providers` and everything below it.
"""
