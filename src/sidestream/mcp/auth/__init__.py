"""Signing in at a server: OAuth, tokens and where they are kept."""
