"""Text for people and logs: secret redaction, short reprs, HTML for notebooks, and normalized URLs.

Imports nothing of this package but `errors` and `jsontext`.
"""
