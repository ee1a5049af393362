"""The event log: conversations as append-only records, in a SQLite file or in PostgreSQL.

    store = open_store()                        # a file in the platform's data folder
    store = open_store("talks.db")
    store = open_store("postgresql://localhost/app")
    chat = Chat(agent, store=store, id="support-42")

May import `turn` (its state and ledger), `tools`, `messages`, `stream` and the modules at the root of `sidestream`.
"""

from typing import TYPE_CHECKING

from sidestream.lazy import lazy_names

if TYPE_CHECKING:
    from sidestream.store.log.conversation import Conversation as Conversation
    from sidestream.store.log.fold import LogState as LogState, UnresolvedCall as UnresolvedCall
    from sidestream.store.log.writer import LogDetail as LogDetail
    from sidestream.store.opening import open_store as open_store
    from sidestream.store.postgres.store import PostgresStore as PostgresStore
    from sidestream.store.protocol import (
        ConversationInfo as ConversationInfo,
        Store as Store,
        StoreProblem as StoreProblem,
    )
    from sidestream.store.records import Record as Record, Row as Row
    from sidestream.store.sqlite.store import SqliteStore as SqliteStore

__all__, __getattr__, __dir__ = lazy_names(  # pyright: ignore[reportUnsupportedDunderAll]
    __name__,
    {
        "store.log.conversation": "Conversation",
        "store.log.fold": "LogState UnresolvedCall",
        "store.opening": "open_store",
        "store.postgres.store": "PostgresStore",
        "store.protocol": "ConversationInfo Store StoreProblem",
        "store.records": "Record Row",
        "store.sqlite.store": "SqliteStore",
        "store.log.writer": "LogDetail",
    },
)
