"""What the stream reports when a run continues with another model."""

from sidestream.stream.parts import Custom, Error
from sidestream.text.redaction import redact
from sidestream.turn.ledger import MODEL_FALLBACK


def fallback_notice(failed: str, model: str, error: Error) -> Custom:
    """Says which model failed and why, and which is called instead."""
    message = redact(error.message)
    why = {"kind": error.kind, "message": message, "code": error.code, "status": error.status}
    return Custom(
        MODEL_FALLBACK,
        {
            "message": f"{failed} failed before it answered; the run continues with {model}. {message}",
            "failed": failed,
            "model": model,
            "error": {key: value for key, value in why.items() if value is not None},
        },
    )
