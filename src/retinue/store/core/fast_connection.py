"""A SQLAlchemy connection that runs prebuilt statements almost as fast as sqlite3 itself.

The statements of the store are built once and run millions of times. SQLAlchemy caches the compiled
SQL too, but each execution still costs about 15 us for features that the store does not use. This
connection caches the SQL text and the order of its parameters, and calls sqlite3 directly, which
costs about 3 us. Schema inspection, migrations and SQL given as text go through SQLAlchemy as
usual. See docs/decisions/0003-prebuilt-sqlite-statements.md.
"""

from __future__ import annotations

import sqlite3
from collections import namedtuple
from collections.abc import Callable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from functools import lru_cache, partial
from operator import itemgetter
from typing import Any, ClassVar, cast

import sqlalchemy as sa
from msgspec import Struct
from sqlalchemy import exc
from sqlalchemy.engine import Dialect
from sqlalchemy.sql.compiler import SQLCompiler

Parameters = Mapping[str, Any]
PREPARED_STATEMENTS_MAX = 2_000
_NO_PARAMETERS: Parameters = {}
_FAST_STATEMENTS = (sa.Select, sa.UpdateBase)


class PreparedStatement:
    """A statement compiled for SQLite: its SQL text, the order of its parameters, and the type of its rows."""

    __slots__ = ("_row", "_tidy", "gives_rows", "pick", "text", "writes_to")

    def __init__(self, statement: Any, dialect: Dialect, keys: Sequence[str]) -> None:
        compiled: Any = statement.compile(dialect=dialect, column_keys=list(keys) or None)
        assert isinstance(compiled, SQLCompiler)
        self.text = str(compiled)
        writes = isinstance(statement, sa.Insert | sa.Update | sa.Delete)
        self.writes_to: str | None = cast(Any, statement).table.name if writes else None
        names: list[str] = list(compiled.positiontup or ())
        # Only values that the statement itself fixes have a default: a missing parameter is an error, never NULL.
        self.pick = _build_picker(names, {n: v for n, v in compiled.params.items() if not compiled.binds[n].required})
        columns: list[Any] = list(getattr(compiled, "_result_columns", ()))
        self._row: Callable[[Sequence[Any]], Any] = tuple
        self._tidy: list[tuple[int, Callable[[Any], Any]]] = []
        self.gives_rows = bool(columns)
        if columns:
            self._row = _row_type(tuple(column.keyname for column in columns))
            for i, column in enumerate(columns):
                process = column.type.dialect_impl(dialect).result_processor(dialect, None)
                if process is not None:
                    self._tidy.append((i, process))

    @property
    def has_plain_rows(self) -> bool:
        return not self._tidy

    def missing_value_error(self, missing: KeyError) -> exc.StatementError:
        return exc.StatementError(f"no value for {missing}", self.text, None, None)

    def make_row(self, values: Sequence[Any]) -> Any:
        if self._tidy:
            changed = list(values)
            for i, process in self._tidy:
                changed[i] = process(changed[i])
            values = changed
        return self._row(values)


def _build_picker(names: list[str], defaults: Parameters) -> Callable[[Parameters], Sequence[Any]]:
    """Return a function that returns parameter values in the order in which the SQL text needs them.

    Without default values, the function is implemented in C.
    """
    if defaults:
        of_all = _build_picker(names, _NO_PARAMETERS)
        return lambda parameters: of_all({**defaults, **parameters})
    if len(names) == 1:
        only = names[0]
        return lambda parameters: (parameters[only],)
    return itemgetter(*names) if names else lambda _parameters: ()


@lru_cache(PREPARED_STATEMENTS_MAX)
def _row_type(names: tuple[str, ...]) -> Callable[[Sequence[Any]], Any]:
    """Return a function that builds a row with these column names. Statements with the same columns share it."""
    made: Any = namedtuple("Row", names, rename=True)  # pyright: ignore[reportUntypedNamedTuple]
    return partial(cast(Any, tuple).__new__, made)  # like `_make`, which is slower because it is written in Python


class FastResult(Struct, frozen=True):
    """The result of a query. It implements only the methods of SQLAlchemy's result that the store uses."""

    _cursor: sqlite3.Cursor
    _prepared: PreparedStatement

    @property
    def rowcount(self) -> int:
        return self._cursor.rowcount

    def __iter__(self) -> Iterator[Any]:
        return map(self._prepared.make_row, self._cursor)

    def all(self) -> list[Any]:
        return [self._prepared.make_row(values) for values in self._cursor.fetchall()]

    def plain_rows(self) -> Iterator[Any]:
        """Iterate over the rows as raw tuples if no column needs conversion, and as row objects otherwise.

        Raw tuples are cheaper if there are thousands of rows.
        """
        return iter(self._cursor) if self._prepared.has_plain_rows else iter(self)

    def one_or_none(self) -> Any:
        rows = self._cursor.fetchmany(2)
        if len(rows) > 1:
            raise exc.MultipleResultsFound("more than one row where at most one was expected")
        return self._prepared.make_row(rows[0]) if rows else None

    def one(self) -> Any:
        row = self.one_or_none()
        if row is None:
            raise exc.NoResultFound("no row where one was expected")
        return row

    def first(self) -> Any:
        values = self._cursor.fetchone()
        self._cursor.close()
        return self._prepared.make_row(values) if values is not None else None

    def scalar(self) -> Any:
        row = self.first()
        return row[0] if row is not None else None

    def scalar_one(self) -> Any:
        return self.one()[0]

    def scalars(self) -> FastScalars:
        return FastScalars(self)


class WriteResult(Struct, frozen=True):
    """The result of a statement that writes and returns no rows."""

    rowcount: int


class FastScalars:
    """Iterates over the first column of each row of a result."""

    __slots__ = ("_rows",)

    def __init__(self, rows: FastResult) -> None:
        self._rows = rows

    def __iter__(self) -> Iterator[Any]:
        return (row[0] for row in self._rows)

    def all(self) -> list[Any]:
        return list(self)


class FastConnection(sa.Connection):
    """Runs `insert`, `update`, `delete` and `select` constructs on sqlite3, and everything else through SQLAlchemy.

    Statements that run on sqlite3 raise its errors unchanged.
    """

    # Keyed by the statement's `id()`. Each entry holds its statement, so that the id is not reused. Shared, because the
    # SQL text is the same on every connection. Bounded: all statements that are built once fit. Statements built on
    # the fly add entries that are never used again. When it is full, it is cleared, and the permanent statements are
    # compiled again.
    _prepared: ClassVar[dict[int, tuple[Any, PreparedStatement]]] = {}
    # Shared by all statements that only write: creating a cursor takes as long as binding the values.
    _cursor: sqlite3.Cursor | None = None
    _written_tables: set[str] | None = None

    def take_written_tables(self) -> AbstractSet[str] | None:
        """Return the tables that were written to since this was last called, or None if they are unknown."""
        written, self._written_tables = self._written_tables, set()
        return written

    def execute(self, statement: Any, parameters: Any = None, *, execution_options: Any = None) -> Any:
        kept = self._prepared.get(id(statement))  # every statement in the cache is of a supported type
        cursor = self._cursor
        if isinstance(parameters, list):
            rows = cast(list[Parameters], parameters)
            if len(rows) != 1:
                return self._execute(statement, parameters, execution_options)
            parameters = rows[0]
        if kept is None or cursor is None or execution_options is not None:
            return self._execute(statement, parameters, execution_options)
        prepared = kept[1]
        try:
            values = prepared.pick(parameters or _NO_PARAMETERS)
        except KeyError as missing:
            raise prepared.missing_value_error(missing) from missing
        if prepared.gives_rows:
            return FastResult(cursor.connection.execute(prepared.text, values), prepared)
        if self._written_tables is not None and prepared.writes_to is not None:
            self._written_tables.add(prepared.writes_to)
        cursor.execute(prepared.text, values)
        return WriteResult(cursor.rowcount)

    def _execute(self, statement: Any, parameters: Any, execution_options: Any) -> Any:
        """Run a statement that is not prepared yet, has several rows of parameters, or must be run by SQLAlchemy."""
        kept = self._prepared.get(id(statement))
        if execution_options is not None or (kept is None and not isinstance(statement, _FAST_STATEMENTS)):
            self._written_tables = None
            return super().execute(statement, parameters, execution_options=execution_options)
        if self._cursor is None:
            self._cursor = cast(sqlite3.Connection, self.connection.dbapi_connection).cursor()
        rows = cast(list[Parameters], parameters) if isinstance(parameters, list) else [parameters or _NO_PARAMETERS]
        prepared = kept[1] if kept is not None else self._prepare(statement, rows[0])
        if len(rows) == 1:
            return self.execute(cast(Any, statement), rows[0])
        if self._written_tables is not None and prepared.writes_to is not None:
            self._written_tables.add(prepared.writes_to)
        try:
            values = list(map(prepared.pick, rows))
        except KeyError as missing:
            raise prepared.missing_value_error(missing) from missing
        self._cursor.executemany(prepared.text, values)
        return WriteResult(self._cursor.rowcount)

    def close(self) -> None:
        """Close the connection and its cursor. An open cursor would keep the file open."""
        if self._cursor is not None:
            self._cursor.close()
            self._cursor = None
        super().close()

    def _prepare(self, statement: Any, parameters: Parameters) -> PreparedStatement:
        keys = tuple(parameters) if isinstance(statement, sa.Insert) else ()
        prepared = PreparedStatement(statement, self.dialect, keys)
        if len(self._prepared) >= PREPARED_STATEMENTS_MAX:
            self._prepared.clear()
        self._prepared[id(statement)] = (statement, prepared)
        return prepared
