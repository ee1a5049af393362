"""Text that people and logs see: secrets kept out of it, reprs cut short, HTML for notebooks, URLs in one spelling.

Imports nothing of this package but `errors` and `jsontext`.
"""
