"""Finds the current name of an HTTP path, or of an operation, whose old route was requested."""

from __future__ import annotations

from retinue.api.errors import OperationRenamed, RouteRenamed
from retinue.domain.renamed_names import HTTP_PATHS, OPERATIONS

ROUTE_PREFIX = "/api/"


def find_renamed_path(request: str) -> RouteRenamed | None:
    """Return the error for a request (`METHOD PATH`) to a path of an earlier version."""
    for old, new in HTTP_PATHS.items():
        prefix = old.removesuffix("HASH")
        if request == old or (prefix != old and request.startswith(prefix)):
            return RouteRenamed(old, new)
    return None


def find_renamed_operation(path: str) -> OperationRenamed | None:
    """Return the error that names the new operation, or None if the path is not an old route."""
    old = path.removeprefix(ROUTE_PREFIX).replace("/", ".")
    new = OPERATIONS.get(old) if path.startswith(ROUTE_PREFIX) else None
    return OperationRenamed(old, new=new) if new is not None else None
