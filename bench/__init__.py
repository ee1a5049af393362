"""What a streamed event costs: against the floor of our dependencies, and against peers."""
