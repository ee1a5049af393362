"""Text for people and logs: secret redaction, short reprs, HTML for notebooks, and normalised URLs.

Imports nothing of this package but `errors` and `jsontext`.
"""
