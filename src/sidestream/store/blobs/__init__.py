"""Bytes beside the log: in a folder, in a bucket, and on disk while they are read."""
