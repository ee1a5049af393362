"""Blobs beside the log, in a folder or in a bucket."""
