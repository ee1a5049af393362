"""What a library shows of a stream, and what it loses: `make losses`."""
