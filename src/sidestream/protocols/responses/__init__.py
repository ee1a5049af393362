"""Parts as the events and objects of the Responses API."""
