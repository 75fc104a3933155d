"""Old names of operations, parameters, commands and options: each error names the new one, from one table."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path

import msgspec
import pytest
from operations.operations_instance import OperationsServer, open_operations_server, person

from retinue.api.renamed_routes import find_renamed_operation
from retinue.api.responses import http_status
from retinue.cli.errors import UsageError
from retinue.cli.parser import parse_arguments
from retinue.cli.renamed_commands import RENAMED_COMMANDS
from retinue.domain import renamed_names
from retinue.domain.agent import PermissionLevel
from retinue.domain.errors import Invalid
from retinue.operations.base import parse_request
from retinue.operations.catalog import OPERATIONS
from retinue.operations.generate_reference import find_renamed_commands
from retinue.operations.parameter_schema import describe_parameters
from retinue.operations.renamed_docs import PAGE_PATH, render_renamed_page
from retinue.policy.access.operation_permissions import override_levels
from retinue.policy.tools.tool_groups import OWNER_DECIDES, expand_entries
from retinue.testing.local_instance import LocalInstance


@pytest.fixture
async def server(tmp_path: Path) -> AsyncIterator[OperationsServer]:
    (tmp_path / "home").mkdir()
    async with open_operations_server(LocalInstance(tmp_path / "home")) as made:
        yield made


OLD_COMMANDS = {old: new for old, new in RENAMED_COMMANDS.items() if " --" not in old}
OLD_OPTIONS = {old: new for old, new in RENAMED_COMMANDS.items() if " --" in old}


@pytest.mark.parametrize("old", renamed_names.OPERATIONS)
def test_the_route_of_a_renamed_operation_returns_an_error_that_names_the_new_operation(old: str) -> None:
    new = renamed_names.OPERATIONS[old]
    assert new in OPERATIONS and old not in OPERATIONS
    error = find_renamed_operation("/api/" + old.replace(".", "/"))
    assert error is not None and (error.code, http_status(error)) == ("operation.renamed", 404)
    assert error.sentence == f"`{old}` is now `{new}`" and OPERATIONS[new].route in error.try_this


@pytest.mark.parametrize("path", ["/api/server/status", "/api/house", "/house/status", "/api/house/status/", "/api/"])
def test_routes_of_other_operations_are_not_treated_as_renamed(path: str) -> None:
    assert find_renamed_operation(path) is None


@pytest.mark.parametrize("key", renamed_names.PARAMETERS)
def test_a_renamed_parameter_of_an_operation_is_refused_with_its_new_name(key: str) -> None:
    operation, _, old = key.rpartition(".")
    new = renamed_names.PARAMETERS[key]
    names = {each.name for each in describe_parameters(OPERATIONS[operation])}
    assert new in names and old not in names
    with pytest.raises(Invalid) as error:
        parse_request(json.dumps({old: "x"}).encode(), OPERATIONS[operation].parameters, operation=operation)
    assert (error.value.code, f"`{old}` is now `{new}`" in error.value.because) == ("request.invalid", True)


async def test_an_operation_that_gets_a_renamed_parameter_does_nothing_and_gives_the_new_name(
    server: OperationsServer,
) -> None:
    with pytest.raises(Invalid) as error:
        await server.ask(person("owner"), "delegation.stop", id="0" * 8, why="enough")
    assert "`why` is now `reason`" in error.value.because
    with pytest.raises(Invalid) as error:
        await server.ask(person("owner"), "delegation.stop", id="0" * 8, wy="enough")
    assert "is now" not in error.value.because


@pytest.mark.parametrize("old", OLD_COMMANDS)
def test_a_renamed_command_fails_with_an_error_that_names_the_new_command(old: str) -> None:
    with pytest.raises(UsageError) as error:
        parse_arguments([*old.split(), "--json"])
    assert (error.value.code, error.value.sentence) == (
        "usage.renamed",
        f"`retinue {old}` is now `retinue {OLD_COMMANDS[old]}`",
    )
    assert error.value.try_this == f"retinue {OLD_COMMANDS[old]} --help"


@pytest.mark.parametrize("old", [each for each in OLD_OPTIONS if not each.startswith("rehearse")])
def test_a_renamed_option_of_a_command_fails_with_an_error_that_names_the_new_option(old: str) -> None:
    command, _, option = old.rpartition(" ")
    new = OLD_OPTIONS[old].rpartition(" ")[2]
    with pytest.raises(UsageError) as error:
        parse_arguments([*command.split(), f"{option}=x"])
    assert (error.value.code, error.value.sentence) == ("usage.renamed", f"`{option}` is now `{new}`")


def test_the_old_noun_of_renamed_commands_fails_with_an_error_that_names_the_new_noun() -> None:
    for old, new in {"house": "server", "set-aside": "poison-message", "command": "slash-command"}.items():
        with pytest.raises(UsageError) as error:
            parse_arguments([old])
        assert error.value.sentence == f"`retinue {old}` is now `retinue {new}`"


def test_the_tables_of_renamed_names_agree_with_the_operations_and_the_generated_files() -> None:
    assert find_renamed_commands() == RENAMED_COMMANDS
    assert render_renamed_page() == PAGE_PATH.read_text(encoding="utf-8")
    schemas = json.loads((PAGE_PATH.parent / "openapi.json").read_text(encoding="utf-8"))["components"]["schemas"]
    for key, new in renamed_names.FIELDS.items():
        schema, _, old = key.rpartition(".")
        if schema in schemas:
            fields = schemas[schema]["properties"]
            assert new in fields and old not in fields, key
        else:
            fields = _report_fields(schema)
            assert new in fields and old not in fields, key


def _report_fields(name: str) -> tuple[str, ...]:
    from retinue.dry_run import report_types

    struct: type[msgspec.Struct] = getattr(report_types, name)
    return struct.__struct_fields__


def test_a_permission_level_set_for_the_old_name_of_a_renamed_operation_counts_for_the_new_one() -> None:
    standard, boss = PermissionLevel.STANDARD, PermissionLevel.BOSS
    defaults = {"server.backup": standard, "server.why": standard}
    assert override_levels(defaults, {"house.backup": boss})["server.backup"] is boss
    assert override_levels(defaults, {"house.backup": boss, "server.backup": standard})["server.backup"] is standard
    plugin = {**defaults, "house.backup": standard}  # a plugin has an operation of this name
    assert override_levels(plugin, {"house.backup": boss}) == {**plugin, "house.backup": boss}


def test_a_tool_list_entry_with_the_old_name_of_a_renamed_operation_matches_its_tool() -> None:
    assert expand_entries(["house_backup", "set_aside_*", "read"], {}) == ("server_backup", "set_aside_*", "read")
    assert "server_backup" in OWNER_DECIDES and not any(each.startswith("house_") for each in OWNER_DECIDES)
