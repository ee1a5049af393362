"""The Interactions API: steps, and conversations that the server stores."""
