"""Finds the current name of a renamed path or operation, for requests that use the old name."""

from __future__ import annotations

from retinue.api.errors import OperationRenamed, RouteRenamed
from retinue.domain.renamed_names import HTTP_PATHS, OPERATIONS

ROUTE_PREFIX = "/api/"


def find_renamed_path(request: str) -> RouteRenamed | None:
    """Return the error for a request (`METHOD PATH`) whose path was renamed, or None for any other path."""
    for old, new in HTTP_PATHS.items():
        prefix = old.removesuffix("HASH")
        if request == old or (prefix != old and request.startswith(prefix)):
            return RouteRenamed(old, new)
    return None


def find_renamed_operation(path: str) -> OperationRenamed | None:
    """Return the error for a request to the old path of a renamed operation, or None for any other path."""
    old = path.removeprefix(ROUTE_PREFIX).replace("/", ".")
    new = OPERATIONS.get(old) if path.startswith(ROUTE_PREFIX) else None
    return OperationRenamed(old, new=new) if new is not None else None
