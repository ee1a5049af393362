"""From Chat Completions chunks to parts. Pure."""
