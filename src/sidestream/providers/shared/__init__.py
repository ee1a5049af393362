"""Code that the encoders and decoders of all providers share. Pure.

It does not depend on any provider. It imports the protocol in `sidestream.providers` and everything below it.
"""
