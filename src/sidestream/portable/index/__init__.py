"""File search: an index of files and folders, by keyword and by vector, in a file or on PostgreSQL.

Programs use `Index`, which `sidestream.open_index` opens. A `Database` stores it. May import documents and the store's
schemas; numpy, apsw, sqlite-vec and psycopg are imported when they are used.
"""

from sidestream.portable.index.index import AddReport, Index
from sidestream.portable.index.records import Counts, IndexedFile, Passage

__all__ = ["AddReport", "Counts", "Index", "IndexedFile", "Passage"]
