"""A PostgreSQL database as a store needs it: connected to, brought to today's schema, and its errors in words."""

import re
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from hashlib import sha256
from typing import TYPE_CHECKING, Any, LiteralString, cast
from urllib.parse import parse_qsl, urlencode, urlsplit

from sidestream.errors import ConfigurationError, MissingExtraError, NewerSchemaError, StoreError
from sidestream.redaction import redact, register_secret

if TYPE_CHECKING:
    from psycopg import AsyncConnection

    Connection = AsyncConnection[tuple[Any, ...]]

Migration = Sequence[str]
"""The statements that lead from one version of the schema to the next; `{schema}` stands for its name."""

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
        "CREATE INDEX records_by_blob ON {schema}.records USING gin (blobs) WHERE blobs <> '{{}}'",
    ),
)
OLDEST_SERVER = 15
_VERSION_TABLE = (
    "SELECT 1 FROM pg_class JOIN pg_namespace ON pg_namespace.oid = relnamespace "
    "WHERE nspname = %s AND relname = 'version'"
)

_PORTS = re.compile(r"[\d,]*")
_SHIFTED = re.compile(r"[@/]")
_NAME = re.compile(r"[a-z_][a-z0-9_]{0,39}")
_PARAMETERS = {"connect_timeout": "10", "tcp_user_timeout": "30000", "client_encoding": "UTF8"}
"""A server that does not answer must not hold up a program for ever."""

_WORDS = {
    "28000": "this user may not connect; check the user, and pg_hba.conf on the server",
    "28P01": "the password was refused; check the URL",
    "3D000": "there is no such database; create it first",
    "42501": "this user may not do that; grant it the rights on the schema",
    "53100": "the server's disk is full; free some space there and try again",
    "53300": "the server has no connection left; close some or raise max_connections",
    "55P03": "another process holds the conversation; try again once it is done",
    "57P03": "the server is starting up or shutting down; try again in a moment",
    "25006": "the server is read-only; use its primary",
    "22P05": "the database cannot hold all characters; create it with the encoding UTF8",
}


class PostgresServer:
    """The database behind a URL, and the schema that it must have."""

    def __init__(self, url: str, migrations: Sequence[Migration]) -> None:
        try:
            import psycopg.conninfo
        except ImportError as error:
            raise MissingExtraError("postgres", "a store in PostgreSQL") from error
        address, self.schema = _without_schema(url)
        try:
            found = psycopg.conninfo.conninfo_to_dict(address)
        except psycopg.Error:
            found = {}
        parameters = _PARAMETERS | {name: str(value) for name, value in found.items()}
        # A password that is not escaped shifts the rest. Neither the URL nor its parts may be shown then.
        if (
            not found
            or not _PORTS.fullmatch(parameters.get("port", ""))
            or _SHIFTED.search(parameters.get("dbname", ""))
        ):
            raise ConfigurationError(
                "this is no URL of PostgreSQL that can be read: write postgresql://user@host:5432/database, "
                "with % escapes for special characters in the password"
            )
        register_secret(parameters.get("password", ""))
        self._address = psycopg.conninfo.make_conninfo("", **parameters)
        self.version = len(migrations)
        self._migrations = migrations
        self.name = _public_name(parameters)
        self.channel = f"{self.schema}_appended"
        self.lock_key = int.from_bytes(sha256(f"sidestream {self.schema}".encode()).digest()[:8], signed=True)

    def sql(self, statement: str) -> LiteralString:
        """The statement with the name of the schema, which was checked, in its place."""
        return cast(LiteralString, statement.format(schema=self.schema))

    async def connect(self) -> "Connection":
        """A new connection."""
        from psycopg import AsyncConnection

        with self.errors("cannot connect to"):
            connection = await AsyncConnection.connect(self._address, autocommit=True)
            try:
                if connection.info.server_version < OLDEST_SERVER * 10_000:
                    raise StoreError(f"{self.name} is older than PostgreSQL {OLDEST_SERVER}; update the server")
                await connection.execute("SET lock_timeout = '10s'")
            except BaseException:
                await connection.close()
                raise
        return connection

    @contextmanager
    def errors(self, doing: str = "the store in") -> Generator[None]:
        """Around work on the database: what fails comes out as StoreError."""
        import psycopg

        try:
            yield
        except psycopg.Error as error:
            said = redact(str(error).partition("\n")[0])
            words = _WORDS.get(error.sqlstate or "", "check the server and the URL")
            raise StoreError(f"{doing} {self.name}: {said}; {words}") from error

    async def version_of(self, connection: "Connection") -> int:
        """The version of the schema; 0 where there is none."""
        # Not by to_regclass: it answers from a cache that may not know yet what others have just made.
        found = await connection.execute(_VERSION_TABLE, (self.schema,))
        if not await found.fetchone():
            return 0
        found = await connection.execute(self.sql("SELECT max(version) FROM {schema}.version"))
        row = await found.fetchone()
        return row[0] or 0 if row else 0

    async def refuse_newer(self, connection: "Connection") -> int:
        """The version of the schema. Raises NewerSchemaError above ours."""
        version = await self.version_of(connection)
        if version > self.version:
            raise NewerSchemaError(
                f"{self.name} was written by a newer version of Sidestream (schema {version}, this one knows "
                f"{self.version}); it can be read, but not written: update Sidestream, or use another database"
            )
        return version

    async def bring_up_to_date(self, connection: "Connection") -> None:
        """Makes or migrates the schema, in one transaction, where it must be."""
        if await self.refuse_newer(connection) == self.version:
            return
        async with connection.transaction():
            # Others may have come first; from here on nobody can.
            await connection.execute("SELECT pg_advisory_xact_lock(%s)", (self.lock_key,))
            version = await self.refuse_newer(connection)
            if not version:
                await self._make_schema(connection)
            for step in self._migrations[version:]:
                for statement in step:
                    await connection.execute(self.sql(statement))
            await connection.execute(self.sql("UPDATE {schema}.version SET version = %s"), (self.version,))

    async def _make_schema(self, connection: "Connection") -> None:
        if connection.info.parameter_status("server_encoding") != "UTF8":
            raise StoreError(f"{self.name} cannot hold all characters; create a database with the encoding UTF8")
        found = await connection.execute("SELECT FROM pg_namespace WHERE nspname = %s", (self.schema,))
        # Whoever may not create schemas can have one made by someone who may.
        if not found.rowcount:
            await connection.execute(self.sql("CREATE SCHEMA {schema}"))


def _without_schema(url: str) -> tuple[str, str]:
    """The URL as PostgreSQL knows it, and the schema that it names as `?schema=`."""
    try:
        parts = urlsplit(url)
    except ValueError:
        return url, "sidestream"
    options = parse_qsl(parts.query, keep_blank_values=True)
    names = [value for key, value in options if key == "schema"]
    if not names:
        return url, "sidestream"
    if not _NAME.fullmatch(names[-1]):
        raise ConfigurationError(f"{names[-1]!r} cannot be the name of a schema: use small letters, digits and _")
    query = urlencode([(key, value) for key, value in options if key != "schema"])
    return parts._replace(query=query).geturl(), names[-1]


def _public_name(parameters: dict[str, str]) -> str:
    """Where the database is, without what nobody else may know."""
    user = f"{parameters['user']}@" if "user" in parameters else ""
    host = parameters.get("host") or parameters.get("hostaddr") or "localhost"
    port = f":{parameters['port']}" if "port" in parameters else ""
    return f"postgresql://{user}{host}{port}/{parameters.get('dbname', '')}"
