"""Files as bytes: media types, safe names, and the platform's folders.

Imports nothing of this package.
"""
