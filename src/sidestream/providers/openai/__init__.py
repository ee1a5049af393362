"""OpenAI's two APIs, in `chat` and `responses`, and the options, billing, files and model families that they share."""
