"""Selects the secrets that a command may use, and reads them just before the command starts.

A rule with a header gives the secret to the proxy, and the command never sees it. A rule with a
variable gives the secret to the command, which can read it. In both cases the server redacts the
secret in the command's output.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

from msgspec import Struct

from retinue.config.sandbox import SandboxSettings, SecretRule
from retinue.domain.structs import replace
from retinue.sandbox.base import Confinement
from retinue.sandbox.errors import SandboxSecretUnusable
from retinue.sandbox.network_rules import filter_allowed


class ApplicableSecret(Struct, frozen=True):
    """A secret that one command may use, with its rule. `hosts` are the rule's hosts that the command may reach."""

    name: str
    rule: SecretRule
    hosts: tuple[str, ...] = ()
    variable: str = ""


def find_applicable_secrets(
    settings: SandboxSettings, agent: str, program: Path, confinement: Confinement
) -> tuple[ApplicableSecret, ...]:
    """Return the secrets that a command may use.

    `program` is the resolved path of the program, because a bare name could mean any program.
    """
    return tuple(_iterate_applicable(settings, agent, program, confinement))


def _iterate_applicable(
    settings: SandboxSettings, agent: str, program: Path, confinement: Confinement
) -> Iterator[ApplicableSecret]:
    reachable = confinement.network.hosts if confinement.network is not None else ()
    for name, rule in settings.secrets.items():
        if rule.secret is None or (rule.agents and agent not in rule.agents):
            continue
        hosts = filter_allowed(rule.hosts, reachable) if rule.header else ()
        variable = rule.variable if str(program) in rule.commands else ""
        if hosts or variable:
            yield ApplicableSecret(name, rule, hosts, variable)


def add_secrets(
    confinement: Confinement, secrets: tuple[ApplicableSecret, ...], environment: Mapping[str, str]
) -> Confinement:
    """Read the secrets, and return the confinement with them. Raises an error if a secret is missing or unusable."""
    injected: dict[str, dict[str, str]] = {}
    variables: dict[str, str] = {}
    for each in secrets:
        assert each.rule.secret is not None
        value = each.rule.secret.read(environment)
        if not value.isprintable() or not value.isascii():
            raise SandboxSecretUnusable(each.name, location=str(each.rule.secret))
        for host in each.hosts:
            injected.setdefault(host, {})[each.rule.header] = f"{each.rule.prefix}{value}"
        if each.variable:
            variables[each.variable] = value
    network = confinement.network
    if network is not None and injected:
        network = replace(network, injected={**network.injected, **injected})
    return replace(confinement, network=network, environment={**confinement.environment, **variables})
