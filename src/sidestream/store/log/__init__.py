"""The log of one conversation: records, segments, the writer and what is rebuilt from them."""
