"""Measures the cost of a streamed event, compared with the floor of our dependencies and with peers."""
