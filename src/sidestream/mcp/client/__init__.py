"""A server whose tools this process calls: its connection, calls, questions and results."""
