"""What OpenAI's two APIs share: options, billing, files, model families; `chat` and `responses` hold the APIs."""
