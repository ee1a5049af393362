"""Documents as text: HTML, PDF, Word, Markdown, source code and plain text, with offsets and limits.

`read` converts bytes; it blocks, so call it in a thread. What parses binary formats runs in a process of its own, with
limits of memory and time, since such files may be made to exhaust both. Each library is imported on first use.
"""

from sidestream.portable.documents.document import Document, DocumentLimits
from sidestream.portable.documents.kinds import READERS, is_readable, mime_type_of, read

__all__ = ["READERS", "Document", "DocumentLimits", "is_readable", "mime_type_of", "read"]
