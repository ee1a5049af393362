"""Model calls over WebSocket connections."""
