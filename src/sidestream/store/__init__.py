"""The event log, which keeps conversations as append-only records in a SQLite file or in PostgreSQL.

    store = open_store()                        # a file in the platform's data folder
    store = open_store("talks.db")
    store = open_store("postgresql://localhost/app")
    chat = Chat(agent, store=store, id="support-42")

May import `turn` (its state and ledger), `tools`, `messages`, `stream` and the modules at the root of `sidestream`.
"""

from sidestream.lazy import lazy_names

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
