"""A SQLAlchemy connection that runs prebuilt statements at the price of the driver.

Our statements are built once and run millions of times. SQLAlchemy compiles each once, too, but then spends about
15 us around every execution on what we never use: result metadata, events, cursor strategies. This connection keeps
the compiled text and the order of its parameters, and asks sqlite3 directly, for about 3. Everything else (inspection,
migrations, plain text) goes the usual way. See docs/decisions/0003-quick-statements.md.
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
PREPARED_MAX = 2_000
_NONE: Parameters = {}
_DIRECTLY = (sa.Select, sa.UpdateBase)


class Prepared:
    """One statement, compiled for SQLite: its text, where each parameter goes, and how its rows read."""

    __slots__ = ("_row", "_tidy", "gives_rows", "pick", "text", "writes_to")

    def __init__(self, statement: Any, dialect: Dialect, keys: Sequence[str]) -> None:
        compiled: Any = statement.compile(dialect=dialect, column_keys=list(keys) or None)
        assert isinstance(compiled, SQLCompiler)
        self.text = str(compiled)
        writes = isinstance(statement, sa.Insert | sa.Update | sa.Delete)
        self.writes_to: str | None = cast(Any, statement).table.name if writes else None
        names: list[str] = list(compiled.positiontup or ())
        # Only what the statement itself fixes has a default: a parameter that a caller forgot is an error, never NULL.
        self.pick = _picker(names, {n: v for n, v in compiled.params.items() if not compiled.binds[n].required})
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
    def is_plain(self) -> bool:
        return not self._tidy

    def lacks(self, missing: KeyError) -> exc.StatementError:
        return exc.StatementError(f"no value for {missing}", self.text, None, None)

    def row(self, values: Sequence[Any]) -> Any:
        if self._tidy:
            changed = list(values)
            for i, process in self._tidy:
                changed[i] = process(changed[i])
            values = changed
        return self._row(values)


def _picker(names: list[str], defaults: Parameters) -> Callable[[Parameters], Sequence[Any]]:
    """Takes values out by name, in the order the text wants them, at the speed of C."""
    if defaults:
        of_all = _picker(names, _NONE)
        return lambda parameters: of_all({**defaults, **parameters})
    if len(names) == 1:
        only = names[0]
        return lambda parameters: (parameters[only],)
    return itemgetter(*names) if names else lambda _parameters: ()


@lru_cache(PREPARED_MAX)
def _row_type(names: tuple[str, ...]) -> Callable[[Sequence[Any]], Any]:
    """One for all statements that give the same columns."""
    made: Any = namedtuple("Row", names, rename=True)  # pyright: ignore[reportUntypedNamedTuple]
    return partial(cast(Any, tuple).__new__, made)  # as `_make` does, which is written in Python


class Rows(Struct, frozen=True):
    """What a statement gave back: the part of SQLAlchemy's result that we use."""

    _cursor: sqlite3.Cursor
    _prepared: Prepared

    @property
    def rowcount(self) -> int:
        return self._cursor.rowcount

    def __iter__(self) -> Iterator[Any]:
        return map(self._prepared.row, self._cursor)

    def all(self) -> list[Any]:
        return [self._prepared.row(values) for values in self._cursor.fetchall()]

    def plain(self) -> Iterator[Any]:
        """The rows, as plain as they come: for columns that need no tidying, and rows by the thousand."""
        return iter(self._cursor) if self._prepared.is_plain else iter(self)

    def one_or_none(self) -> Any:
        rows = self._cursor.fetchmany(2)
        if len(rows) > 1:
            raise exc.MultipleResultsFound("more than one row where at most one was expected")
        return self._prepared.row(rows[0]) if rows else None

    def one(self) -> Any:
        row = self.one_or_none()
        if row is None:
            raise exc.NoResultFound("no row where one was expected")
        return row

    def first(self) -> Any:
        values = self._cursor.fetchone()
        self._cursor.close()
        return self._prepared.row(values) if values is not None else None

    def scalar(self) -> Any:
        row = self.first()
        return row[0] if row is not None else None

    def scalar_one(self) -> Any:
        return self.one()[0]

    def scalars(self) -> Scalars:
        return Scalars(self)


class Written(Struct, frozen=True):
    """What a statement gave back that only writes."""

    rowcount: int


class Scalars:
    """The first column of each row."""

    __slots__ = ("_rows",)

    def __init__(self, rows: Rows) -> None:
        self._rows = rows

    def __iter__(self) -> Iterator[Any]:
        return (row[0] for row in self._rows)

    def all(self) -> list[Any]:
        return list(self)


class QuickConnection(sa.Connection):
    """Runs `insert`, `update`, `delete` and `select` constructs directly; leaves the rest to SQLAlchemy.

    Errors of such statements are sqlite3's own.
    """

    # By identity, each with its statement, which keeps the identity from being used again. Shared: a text is the same
    # on every connection. Bounded: statements built once all fit. Those built on the fly fill it with what is never
    # asked for again; then all are forgotten, and those of the house are compiled once more.
    _prepared: ClassVar[dict[int, tuple[Any, Prepared]]] = {}
    # Of all that only write: a new one for each takes as long as binding its values.
    _cursor: sqlite3.Cursor | None = None
    _written: set[str] | None = None

    def written(self) -> AbstractSet[str] | None:
        """To which tables something was written since this was asked last. None: who knows."""
        written, self._written = self._written, set()
        return written

    def execute(self, statement: Any, parameters: Any = None, *, execution_options: Any = None) -> Any:
        kept = self._prepared.get(id(statement))  # what is in there was looked at before, and is one of these
        cursor = self._cursor
        if kept is None or cursor is None or execution_options is not None or isinstance(parameters, list):
            return self._execute(statement, parameters, execution_options)
        prepared = kept[1]
        try:
            values = prepared.pick(parameters or _NONE)
        except KeyError as missing:
            raise prepared.lacks(missing) from missing
        if prepared.gives_rows:
            return Rows(cursor.connection.execute(prepared.text, values), prepared)
        if self._written is not None and prepared.writes_to is not None:
            self._written.add(prepared.writes_to)
        cursor.execute(prepared.text, values)
        return Written(cursor.rowcount)

    def _execute(self, statement: Any, parameters: Any, execution_options: Any) -> Any:
        """Whatever is not one of ours with one set of parameters, or is asked for the first time."""
        kept = self._prepared.get(id(statement))
        if execution_options is not None or (kept is None and not isinstance(statement, _DIRECTLY)):
            self._written = None
            return super().execute(statement, parameters, execution_options=execution_options)
        if self._cursor is None:
            self._cursor = cast(sqlite3.Connection, self.connection.dbapi_connection).cursor()
        rows = cast(list[Parameters], parameters) if isinstance(parameters, list) else [parameters or _NONE]
        prepared = kept[1] if kept is not None else self._prepare(statement, rows[0])
        if len(rows) == 1:
            return self.execute(cast(Any, statement), rows[0])
        if self._written is not None and prepared.writes_to is not None:
            self._written.add(prepared.writes_to)
        try:
            values = list(map(prepared.pick, rows))
        except KeyError as missing:
            raise prepared.lacks(missing) from missing
        self._cursor.executemany(prepared.text, values)
        return Written(self._cursor.rowcount)

    def close(self) -> None:
        """With its cursor, which else would keep the file open behind it."""
        if self._cursor is not None:
            self._cursor.close()
            self._cursor = None
        super().close()

    def _prepare(self, statement: Any, parameters: Parameters) -> Prepared:
        keys = tuple(parameters) if isinstance(statement, sa.Insert) else ()
        prepared = Prepared(statement, self.dialect, keys)
        if len(self._prepared) >= PREPARED_MAX:
            self._prepared.clear()
        self._prepared[id(statement)] = (statement, prepared)
        return prepared
