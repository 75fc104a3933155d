"""Secrets that commands may use: which rule gives one to whom, and the reading of it at the last moment.

A rule with a header gives it to the proxy, and the command never sees it. A rule with a variable gives it to the
command itself, which can then read it: it is masked where it leaves the house, but no longer hidden from the command.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

from msgspec import Struct

from retinue.config.sandbox import SandboxSettings, SecretRule
from retinue.domain.structs import replace
from retinue.sandbox.base import Confinement, SandboxFailed
from retinue.sandbox.network_rules import covered


class Given(Struct, frozen=True):
    """A rule that applies to one command. `hosts` are those of its hosts that this command may reach at all."""

    name: str
    rule: SecretRule
    hosts: tuple[str, ...] = ()
    variable: str = ""


def applicable(settings: SandboxSettings, agent: str, program: Path, confinement: Confinement) -> tuple[Given, ...]:
    """Which secrets a command gets. `program` is the real path of what runs; a name alone could be anyone's."""
    return tuple(_applicable(settings, agent, program, confinement))


def _applicable(settings: SandboxSettings, agent: str, program: Path, confinement: Confinement) -> Iterator[Given]:
    reachable = confinement.network.hosts if confinement.network is not None else ()
    for name, rule in settings.secrets.items():
        if rule.secret is None or (rule.agents and agent not in rule.agents):
            continue
        hosts = covered(rule.hosts, reachable) if rule.header else ()
        variable = rule.variable if str(program) in rule.commands else ""
        if hosts or variable:
            yield Given(name, rule, hosts, variable)


def with_secrets(confinement: Confinement, given: tuple[Given, ...], environment: Mapping[str, str]) -> Confinement:
    """The confinement with the secrets in it, read now. Raises where one is missing: no command runs without it."""
    injected: dict[str, dict[str, str]] = {}
    told: dict[str, str] = {}
    for each in given:
        assert each.rule.secret is not None
        value = each.rule.secret.read(environment)
        if not value.isprintable() or not value.isascii():
            raise SandboxFailed(
                f"the secret {each.name!r} cannot be used",
                because="it is not one line of plain characters",
                try_this=f"write it anew to where {each.rule.secret} is",
                code="sandbox.secret-unusable",
            )
        for host in each.hosts:
            injected.setdefault(host, {})[each.rule.header] = f"{each.rule.before}{value}"
        if each.variable:
            told[each.variable] = value
    network = confinement.network
    if network is not None and injected:
        network = replace(network, injected={**network.injected, **injected})
    return replace(confinement, network=network, environment={**confinement.environment, **told})
