"""The public names, for type checkers: `__init__.py` loads each when it is first used."""

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
