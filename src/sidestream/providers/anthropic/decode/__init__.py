"""From events of the Messages API to parts. Pure."""
