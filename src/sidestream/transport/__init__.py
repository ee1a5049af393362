"""HTTP as values: requests, responses, and what a transport must be.

Pure. Imports `errors`, `limits` and `text`; providers and `wire` meet here.
"""
