"""The PostgreSQL database of a store, with its URL, connections, migrations, and the conversion of its errors."""

import itertools
import os
import re
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager, suppress
from hashlib import sha256
from pathlib import Path
from typing import IO, Any, LiteralString, cast
from urllib.parse import parse_qsl, urlencode, urlsplit

import psycopg
from psycopg.conninfo import conninfo_to_dict, make_conninfo
from psycopg.errors import InvalidSchemaName, UndefinedColumn, UndefinedTable

from sidestream.errors import ConfigurationError, StoreError
from sidestream.store.blobs.folder import disk_errors
from sidestream.store.database import Migration, refuse_newer
from sidestream.text.redaction import Secret, redact, register_secret

Connection = psycopg.AsyncConnection[tuple[Any, ...]]

MIGRATIONS: tuple[Migration, ...] = (
    (
        "CREATE TABLE {schema}.version (version integer NOT NULL)",
        "INSERT INTO {schema}.version VALUES (0)",
        'CREATE TABLE {schema}.conversations (id text COLLATE "C" PRIMARY KEY, head bigint NOT NULL, '
        "created double precision NOT NULL, updated double precision NOT NULL, title text NOT NULL, "
        "model text NOT NULL, last text NOT NULL)",
        "CREATE INDEX conversations_by_time ON {schema}.conversations (updated)",
        'CREATE TABLE {schema}.records (conversation text COLLATE "C" NOT NULL '
        "REFERENCES {schema}.conversations ON DELETE CASCADE, seq bigint NOT NULL, time double precision NOT NULL, "
        "run text NOT NULL, kind text NOT NULL, body bytea NOT NULL, blobs text[] NOT NULL, "
        "PRIMARY KEY (conversation, seq))",
        "CREATE INDEX records_by_run ON {schema}.records (run) WHERE kind = 'run-started'",
        "CREATE INDEX records_by_end ON {schema}.records (time) WHERE kind = 'finish'",
        "CREATE INDEX records_by_blob ON {schema}.records USING gin (blobs) WHERE blobs <> '{{}}'",
    ),
    (
        # Token of the latest claim; writers with an older one may not append.
        "ALTER TABLE {schema}.conversations ADD COLUMN fence text COLLATE \"C\" NOT NULL DEFAULT ''",
        'CREATE TABLE {schema}.tasks (conversation text COLLATE "C" PRIMARY KEY '
        "REFERENCES {schema}.conversations ON DELETE CASCADE, queue text NOT NULL, "
        "position bigint NOT NULL, state text NOT NULL, due double precision NOT NULL, "
        "since double precision NOT NULL, worker text NOT NULL DEFAULT '', "
        "token text COLLATE \"C\" NOT NULL DEFAULT '', lease double precision NOT NULL DEFAULT 0, "
        "beats bigint NOT NULL DEFAULT 0, takeovers integer NOT NULL DEFAULT 0, failures integer NOT NULL DEFAULT 0, "
        "woken bigint NOT NULL DEFAULT 0, later bigint NOT NULL DEFAULT 0)",
        "CREATE INDEX tasks_by_state ON {schema}.tasks (state, due)",
        "CREATE TABLE {schema}.posts (id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, "
        'conversation text COLLATE "C" NOT NULL, kind text NOT NULL, body bytea NOT NULL)',
        "CREATE INDEX posts_by_conversation ON {schema}.posts (conversation)",
        # Only used with `?blobs=database`.
        'CREATE TABLE {schema}.blobs (digest text COLLATE "C" PRIMARY KEY, size bigint NOT NULL, '
        "stored timestamptz NOT NULL DEFAULT now())",
        'CREATE TABLE {schema}.blob_chunks (digest text COLLATE "C" NOT NULL REFERENCES {schema}.blobs '
        "ON DELETE CASCADE, number integer NOT NULL, data bytea NOT NULL, PRIMARY KEY (digest, number))",
        # Pictures and archives are compressed already.
        "ALTER TABLE {schema}.blob_chunks ALTER COLUMN data SET STORAGE EXTERNAL",
    ),
)
"""Statements with `{schema}` as a placeholder for the schema's name."""
OLDEST_SERVER = 15
_VERSION_TABLE = (
    "SELECT 1 FROM pg_class JOIN pg_namespace ON pg_namespace.oid = relnamespace "
    "WHERE nspname = %s AND relname = 'version'"
)

_OWN_OPTIONS = ("schema", "blobs")
_PORTS = re.compile(r"[\d,]*")
_SHIFTED_PASSWORD = re.compile(r"[@/]")
_NAME = re.compile(r"[a-z_][a-z0-9_]{0,39}")
_PARAMETERS = {"connect_timeout": "10", "tcp_user_timeout": "30000", "client_encoding": "UTF8"}
"""Connection parameters with timeouts, so that an unresponsive server does not block a program indefinitely."""

_ADVICE = {
    "28000": "this user may not connect; check the user, and pg_hba.conf on the server",
    "28P01": "the password was refused; check the URL",
    "3D000": "the database does not exist; create it first",
    "42501": "this user lacks the rights; grant them on the schema",
    "53100": "the server's disk is full; free some space there and try again",
    "53300": "the server has no connection left; close some or raise max_connections",
    "55P03": "another process has locked the conversation; try again once it is done",
    "57P03": "the server is starting up or shutting down; try again in a moment",
    "25006": "the server is read-only; use its primary",
    "22P05": "the database cannot hold all characters; create it with the encoding UTF8",
}
_REFUSALS = {
    "28P01": re.compile("password authentication failed|no password supplied"),
    "28000": re.compile("no pg_hba.conf entry|role .* does not exist|authentication failed"),
    "3D000": re.compile("database .* does not exist"),
}
"""Messages with which a server refuses a connection for good. In another language, such a connection is retried."""
_PASSING = ("08", "57P", "53300", "40001", "40P01")
"""Prefixes of error states after which the same statement may succeed."""


class PostgresServer:
    """The database behind a URL, and the schema it must have.

    `suffix` names a separate schema beside that of the store.
    """

    def __init__(self, url: str, migrations: Sequence[Migration], *, suffix: str = "") -> None:
        # An unescaped password ends up in other parts of the URL, so neither the URL nor its parts may be shown.
        url = Secret(url)
        address, self.options = _without_own_options(url)
        """Sidestream's own URL options, `schema` and `blobs`."""
        self.schema = self.options.get("schema", "sidestream")
        if not _NAME.fullmatch(self.schema):
            raise ConfigurationError(
                f"{self.schema!r} cannot be the name of a schema: use lowercase letters, digits and _"
            )
        self.schema += suffix
        address = Secret(address)
        parameters = _parameters_of(address)
        if parameters is None:
            raise ConfigurationError(
                "invalid PostgreSQL store URL; write postgresql://user@host:5432/database, "
                "with % escapes for special characters in the password"
            )
        register_secret(parameters.get("password", ""))
        self._address = make_conninfo("", **parameters)
        self.version = len(migrations)
        self.migrations = migrations
        self.name = _public_name(parameters)
        self.channel = f"{self.schema}_appended"
        self.lock_key = int.from_bytes(sha256(f"sidestream {self.schema}".encode()).digest()[:8], signed=True)

    def topic(self, name: str) -> str:
        """Return the channel for changes of a topic."""
        return f"{self.schema}_{name}"

    def sql(self, statement: str) -> LiteralString:
        """Insert the schema's name, which was validated, into a statement."""
        return cast(LiteralString, statement.format(schema=self.schema))

    async def connect(self) -> Connection:
        """Open a new connection."""
        with self.errors("cannot connect to"):
            connection = await psycopg.AsyncConnection.connect(self._address, autocommit=True)
            try:
                if connection.info.server_version < OLDEST_SERVER * 10_000:
                    raise StoreError(f"{self.name} is older than PostgreSQL {OLDEST_SERVER}; update the server")
                await connection.execute("SET lock_timeout = '10s'")
            except BaseException:
                await connection.close()
                raise
        return connection

    def connect_in_thread(self) -> psycopg.Connection[tuple[Any, ...]]:
        """Open a new connection for a thread, blocking until it is open."""
        with self.errors("cannot connect to"):
            return psycopg.connect(self._address, autocommit=True)

    @contextmanager
    def errors(self, doing: str = "the store in") -> Generator[None]:
        """Convert PostgreSQL errors in the block to StoreError."""
        try:
            yield
        except psycopg.Error as error:
            # Not from the error, which holds the password.
            raise self.store_error(error, doing) from None

    def store_error(self, error: psycopg.Error, doing: str = "the store in") -> StoreError:
        """Convert a PostgreSQL error to StoreError, with advice."""
        message = redact(str(error).partition("\n")[0])
        state = error.sqlstate or _refusal(str(error))
        advice = _ADVICE.get(state or "", "check the server and the URL")
        return StoreError(f"{doing} {self.name}: {message}; {advice}", retryable=_is_passing(error, state))

    async def version_of(self, connection: Connection) -> int:
        """Return the version of the schema, or 0 if it does not exist."""
        # Not by to_regclass, whose cache may not contain a table that another process has just created.
        found = await connection.execute(_VERSION_TABLE, (self.schema,))
        if not await found.fetchone():
            return 0
        found = await connection.execute(self.sql("SELECT max(version) FROM {schema}.version"))
        row = await found.fetchone()
        return row[0] or 0 if row else 0

    async def refuse_newer(self, connection: Connection) -> int:
        """Return the version of the schema. Raises NewerSchemaError if it is above ours."""
        return refuse_newer(await self.version_of(connection), self.version, self.name, alternative="database")

    async def select(
        self, connection: Connection, query: str, values: Sequence[object] | Mapping[str, object]
    ) -> list[tuple[Any, ...]]:
        """Return the rows of a query, or none if the schema does not exist.

        Raises StoreError if the schema has another version.
        """
        statement = self.sql(query)
        try:
            return await (await connection.execute(statement, values)).fetchall()
        except (UndefinedTable, UndefinedColumn, InvalidSchemaName):
            if not await self.refuse_other(connection):
                return []
        # Another process has created the schema just now.
        return await (await connection.execute(statement, values)).fetchall()

    async def create(self, connection: Connection) -> None:
        """Create the schema in one transaction if it does not exist. Raises StoreError if it is older than ours."""
        if await self.refuse_other(connection) == self.version:
            return
        async with connection.transaction():
            await connection.execute("SELECT pg_advisory_xact_lock(%s)", (self.lock_key,))
            # Read again: another process may have created the schema before the lock was acquired.
            if not await self.refuse_other(connection):
                await self._create_schema(connection)
                await self.upgrade(connection, 0)

    async def refuse_other(self, connection: Connection) -> int:
        """Return the version of the schema, or 0 if it does not exist. Raises StoreError for any version but ours."""
        version = await self.refuse_newer(connection)
        if 0 < version < self.version:
            raise StoreError(
                f"{self.name} was written by an older version of Sidestream (schema {version}, this one writes "
                f"{self.version}); stop the servers and workers of the older version, then run "
                "`sidestream logs migrate --store URL --backup FILE`"
            )
        return version

    async def upgrade(self, connection: Connection, version: int) -> None:
        """Apply the migrations after a version, within a transaction."""
        for statement in itertools.chain.from_iterable(self.migrations[version:]):
            await connection.execute(self.sql(statement))
        await connection.execute(self.sql("UPDATE {schema}.version SET version = %s"), (self.version,))

    async def _create_schema(self, connection: Connection) -> None:
        if connection.info.parameter_status("server_encoding") != "UTF8":
            raise StoreError(f"{self.name} cannot hold all characters; create a database with the encoding UTF8")
        found = await connection.execute("SELECT FROM pg_namespace WHERE nspname = %s", (self.schema,))
        # A user who may not create schemas can use an existing one.
        if not found.rowcount:
            await connection.execute(self.sql("CREATE SCHEMA {schema}"))


def _refusal(message: str) -> str | None:
    """Return the error state of a refused connection, for which libpq reports only the message."""
    return next((state for state, phrase in _REFUSALS.items() if phrase.search(message)), None)


def _is_passing(error: psycopg.Error, state: str | None) -> bool:
    """Return whether the connection broke or could not be made, as during a restart of the server."""
    if state is None:
        return isinstance(error, psycopg.OperationalError)
    return state.startswith(_PASSING)


def _parameters_of(address: str) -> dict[str, str] | None:
    """Return the parameters of a connection, or None if the URL is not valid."""
    try:
        found = conninfo_to_dict(address)
    except psycopg.Error:
        return None
    parameters = _PARAMETERS | {name: str(value) for name, value in found.items()}
    is_valid = _PORTS.fullmatch(parameters.get("port", "")) and not _SHIFTED_PASSWORD.search(
        parameters.get("dbname", "")
    )
    return parameters if found and is_valid else None


def _without_own_options(url: str) -> tuple[str, dict[str, str]]:
    """Split a URL into the URL without our own parameters, and those parameters."""
    try:
        parts = urlsplit(url)
    except ValueError:
        return url, {}
    options = parse_qsl(parts.query, keep_blank_values=True)
    own = {key: value for key, value in options if key in _OWN_OPTIONS}
    if not own:
        return url, {}
    query = urlencode([(key, value) for key, value in options if key not in own])
    return parts._replace(query=query).geturl(), own


def _public_name(parameters: dict[str, str]) -> str:
    """Return the URL of the database without its password."""
    user = f"{parameters['user']}@" if "user" in parameters else ""
    host = parameters.get("host") or parameters.get("hostaddr") or "localhost"
    port = f":{parameters['port']}" if "port" in parameters else ""
    return f"postgresql://{user}{host}{port}/{parameters.get('dbname', '')}"


_CREATED = re.compile(r"CREATE TABLE \{schema\}\.(\w+)")
_COLUMNS = (
    "SELECT column_name, is_identity = 'YES' FROM information_schema.columns WHERE table_schema = %s "
    "AND table_name = %s ORDER BY ordinal_position"
)


async def migrate(server: PostgresServer, connection: Connection, backup: Path | None) -> int:
    """Migrate the schema in one transaction that blocks other writers, and return its previous version.

    `backup` is a new file, complete before anything is changed. A new or current schema is left unchanged.
    """
    version = await server.refuse_newer(connection)
    if version in (0, server.version):
        return version
    async with connection.transaction():
        await connection.execute("SELECT pg_advisory_xact_lock(%s)", (server.lock_key,))
        # Read again: another process may have migrated the schema before the lock was acquired.
        version = await server.refuse_newer(connection)
        if version == server.version:
            return version
        await connection.execute(server.sql("LOCK TABLE {schema}.conversations, {schema}.records IN SHARE MODE"))
        if backup is not None:
            with _new_file(backup) as file:
                await _back_up(server, connection, version, file)
        await server.upgrade(connection, version)
    return version


@contextmanager
def _new_file(path: Path) -> Generator[IO[bytes]]:
    """Open a new file for its owner only, flush it at the end of the block, and delete it on failure."""
    with disk_errors(path), open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
        try:
            yield file
            file.flush()
            os.fsync(file.fileno())
        except BaseException:
            with suppress(OSError):
                path.unlink()
            raise


async def _back_up(server: PostgresServer, connection: Connection, version: int, file: IO[bytes]) -> None:
    """Write a psql script that recreates the schema and its data, or fails as a whole."""
    statements = [statement for migration in server.migrations[:version] for statement in migration]
    head = [
        f"-- A store of Sidestream, version {version} of its schema. Restore it with: psql -v ON_ERROR_STOP=1 -f FILE"
    ]
    head += ["BEGIN;", f"CREATE SCHEMA {server.schema};", *(f"{server.sql(each)};" for each in statements)]
    head += [f"UPDATE {server.schema}.version SET version = {version};"]
    file.write("\n".join([*head, ""]).encode())
    for table in _tables(statements):
        found = await (await connection.execute(_COLUMNS, (server.schema, table))).fetchall()
        columns = ", ".join(name for name, _ in found)
        await _copy(connection, f"{server.schema}.{table}", columns, file)
        for name, is_identity in found:
            if is_identity:
                sequence = f"pg_get_serial_sequence('{server.schema}.{table}', '{name}')"
                last = f"(SELECT coalesce(max({name}), 0) + 1 FROM {server.schema}.{table})"
                file.write(f"SELECT setval({sequence}, {last}, false);\n".encode())
    file.write(b"COMMIT;\n")


async def _copy(connection: Connection, table: str, columns: str, file: IO[bytes]) -> None:
    file.write(f"COPY {table} ({columns}) FROM stdin;\n".encode())
    # Names of tables and columns that our own statements have created.
    query = cast(LiteralString, f"COPY {table} ({columns}) TO STDOUT")
    async with connection.cursor() as cursor, cursor.copy(query) as copied:
        async for data in copied:
            file.write(data)
    file.write(b"\\.\n")


def _tables(statements: Sequence[str]) -> list[str]:
    """Return the tables that the statements create, referenced ones first, except for the version."""
    names = [found[1] for statement in statements if (found := _CREATED.match(statement))]
    return [name for name in names if name != "version"]
