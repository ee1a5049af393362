"""From chunks of `generateContent` to parts. Pure."""
