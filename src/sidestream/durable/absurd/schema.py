"""The database of the engine: Absurd's schema, and beside it ours, which finds the task of a conversation."""

from collections.abc import Generator
from contextlib import contextmanager
from typing import cast

from psycopg.errors import DuplicateFunction, InsufficientPrivilege

from sidestream.durable.protocol import EngineError
from sidestream.errors import ConfigurationError, StoreError
from sidestream.redaction import Secret
from sidestream.store.postgres.server import Connection, PostgresServer
from sidestream.store.schema import Migration

OLDEST_ABSURD = (0, 5)
MIGRATIONS: tuple[Migration, ...] = (
    (
        "CREATE TABLE {schema}.version (version integer NOT NULL)",
        "INSERT INTO {schema}.version VALUES (0)",
        # One row for each conversation that has a task, or had one lately: its token is kept for a day.
        'CREATE TABLE {schema}.conversations (conversation text COLLATE "C" PRIMARY KEY, queue text NOT NULL, '
        "task uuid, position bigint NOT NULL, waits bigint, later text, "
        "token text COLLATE \"C\" NOT NULL DEFAULT '', is_held boolean NOT NULL DEFAULT false, "
        "lease_s integer NOT NULL DEFAULT 0, "
        "takeovers integer NOT NULL DEFAULT 0, failures integer NOT NULL DEFAULT 0, "
        "changed timestamptz NOT NULL DEFAULT clock_timestamp())",
        "CREATE INDEX conversations_by_change ON {schema}.conversations (changed) WHERE task IS NULL",
    ),
)
_VERSION_FUNCTION = (
    "SELECT FROM pg_proc JOIN pg_namespace ON pg_namespace.oid = pronamespace "
    "WHERE nspname = 'absurd' AND proname = 'get_schema_version'"
)
_LOCK_KEY = 0x61627375_7264
"""One for all namespaces: they share Absurd's schema."""


class AbsurdServer(PostgresServer):
    """The database behind a URL. Creates Absurd's schema and ours at the first use."""

    def __init__(self, url: str) -> None:
        super().__init__(Secret(url), MIGRATIONS, suffix="_absurd")
        self.namespace = self.schema.removesuffix("_absurd")
        self.due = self.topic("due")
        """The channel on which a queue is named in which something is due, or will be."""

    @contextmanager
    def errors(self, doing: str = "the engine in") -> Generator[None]:
        """Raises EngineError for the errors of PostgreSQL in the block."""
        try:
            with super().errors(doing):
                yield
        except StoreError as error:
            raise EngineError(str(error), retryable=error.retryable) from None

    async def create(self, connection: Connection) -> None:
        """Creates what is missing."""
        version = await _version(connection)
        if version is None:
            version = await self._create_absurd(connection)
        if version[0].isdigit() and tuple(int(part) for part in version.split(".")[:2]) < OLDEST_ABSURD:
            raise ConfigurationError(self._outdated(f"of version {version}"))
        await super().create(connection)

    async def _create_absurd(self, connection: Connection) -> str:
        try:
            from absurdctl import BUNDLED_SCHEMA_SQL  # pyright: ignore[reportMissingTypeStubs]
        except ImportError:
            raise ConfigurationError(self._missing("and absurdctl, which brings it, is not installed")) from None
        try:
            async with connection.transaction():
                await connection.execute("SELECT pg_advisory_xact_lock(%s)", (_LOCK_KEY,))
                # Read again: another process may have created it before the lock was acquired.
                if not (version := await _version(connection)):
                    await connection.execute(cast(str, BUNDLED_SCHEMA_SQL).encode())
                    version = await _version(connection)
        except InsufficientPrivilege:
            raise ConfigurationError(self._missing("and this user may not create it")) from None
        except DuplicateFunction:
            raise ConfigurationError(self._outdated("too old")) from None
        assert version
        return version

    def _outdated(self, version: str) -> str:
        needed = ".".join(map(str, OLDEST_ABSURD))
        return f"the schema of Absurd in {self.name} is {version}; at least {needed} is needed: run `absurdctl migrate`"

    def _missing(self, why: str) -> str:
        return f"{self.name} has no schema of Absurd, {why}: run `absurdctl init` on that database"


async def _version(connection: Connection) -> str | None:
    # The catalog first: a name that was looked up in vain is not looked up again while a lock is awaited.
    if not (await connection.execute(_VERSION_FUNCTION)).rowcount:
        return None
    try:
        row = await (await connection.execute("SELECT absurd.get_schema_version()")).fetchone()
    except InsufficientPrivilege:
        raise ConfigurationError("this user may not use the schema of Absurd: grant it the rights") from None
    return str(row[0]) if row else None
