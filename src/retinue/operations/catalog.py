"""The table of all operations, by name."""

from __future__ import annotations

from retinue.domain.agent import PermissionLevel
from retinue.operations.agent import agent_files, agent_prompt, agents, permanent_agents
from retinue.operations.approval import approvals, questionnaires
from retinue.operations.audit import audit
from retinue.operations.base import Operation
from retinue.operations.config import configuration, settings
from retinue.operations.connector import bindings, connectors, pairing, poison_messages
from retinue.operations.delegation import delegations, subagents
from retinue.operations.envelope import envelope_query, envelopes, inbox, lanes
from retinue.operations.mcp import mcp
from retinue.operations.model import credentials, models, usage
from retinue.operations.person import notifications, people, preferences, tokens
from retinue.operations.plugin import plugins
from retinue.operations.policy import policy
from retinue.operations.run import run_trace, runs
from retinue.operations.schedule import heartbeats, reminders, schedule_calendar, schedules
from retinue.operations.server import doctor, logs, maintenance, server
from retinue.operations.session import (
    deleted_sessions,
    external_sessions,
    mark_read,
    session_exports,
    session_fork,
    session_history,
    session_policy,
    session_queue,
    session_shares,
    session_state,
    session_trim,
    sessions,
    slash_commands,
    transcripts,
)
from retinue.operations.skill import hooks, skills
from retinue.operations.tool import tool_invoke

OPERATIONS: dict[str, Operation] = {
    operation.name: operation
    for module in (
        envelopes,
        envelope_query,
        inbox,
        sessions,
        session_history,
        session_state,
        session_shares,
        external_sessions,
        mark_read,
        session_policy,
        transcripts,
        runs,
        run_trace,
        approvals,
        slash_commands,
        session_exports,
        session_fork,
        session_trim,
        deleted_sessions,
        session_queue,
        delegations,
        subagents,
        agents,
        permanent_agents,
        agent_files,
        agent_prompt,
        models,
        credentials,
        people,
        tokens,
        configuration,
        settings,
        server,
        lanes,
        logs,
        maintenance,
        usage,
        policy,
        tool_invoke,
        skills,
        plugins,
        hooks,
        mcp,
        connectors,
        poison_messages,
        bindings,
        pairing,
        audit,
        doctor,
        notifications,
        questionnaires,
        preferences,
        schedules,
        heartbeats,
        schedule_calendar,
        reminders,
    )
    for operation in module.OPERATIONS
}

DEFAULT_PERMISSIONS: dict[str, PermissionLevel] = {
    operation.name: operation.permission for operation in OPERATIONS.values()
}
"""Minimum permission level of each operation, unless the setting `permission_policy` overrides it."""
