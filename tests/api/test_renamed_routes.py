"""Requests to routes of operations that were renamed."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from api.tcp_server import ApiClient, open_api_client


@pytest.fixture(scope="module")
def api_client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ApiClient]:
    with open_api_client(tmp_path_factory.mktemp("server")) as opened:
        yield opened


def test_a_request_to_the_old_route_of_a_renamed_operation_is_refused_with_the_new_name(api_client: ApiClient) -> None:
    refused = api_client.ask("POST", "/api/house/status", {}, token=api_client.token)
    assert (refused.status, refused.code) == (404, "operation.renamed")
    error = refused.json["error"]
    assert error["sentence"] == "`house.status` is now `server.status`"
    assert error["try"] == "send POST to /api/server/status"
    assert api_client.ask("GET", "/api/house/status", token=api_client.token).code == "operation.renamed"
    assert api_client.ask("POST", "/api/no/such", {}, token=api_client.token).code == "route.not_found"
