"""From events of the Responses API to parts. Pure."""
