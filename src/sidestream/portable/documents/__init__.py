"""Conversion of documents to text: HTML, PDF, Word, Markdown, source code and plain text, with offsets and limits.

`read` converts bytes. It parses them in another process, within time and memory limits, since any document may be made
to exhaust both; this process imports no parser. Short UTF-8 text is only decoded.
"""

from sidestream.portable.documents.document import (
    PAGE_LIMITS,
    Document,
    DocumentLimits,
    is_readable,
    mime_type_of,
    why_empty,
)
from sidestream.portable.documents.reading import read

__all__ = ["PAGE_LIMITS", "Document", "DocumentLimits", "is_readable", "mime_type_of", "read", "why_empty"]
