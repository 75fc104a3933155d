"""All operations of the house."""

from __future__ import annotations

from retinue.domain.agent import PermissionLevel
from retinue.operations import (
    agent_files,
    agent_prompt,
    agents,
    approvals,
    audit,
    commands,
    configuration,
    credentials,
    cutting,
    deleting,
    doctor,
    envelopes,
    exports,
    house,
    invoke,
    keeping,
    lanes,
    logs,
    mail,
    mcp,
    models,
    notifications,
    people,
    plugins,
    policy,
    preferences,
    questionnaires,
    run_list,
    run_trace,
    runs,
    session_reading,
    sessions,
    settings,
    skills,
    tokens,
    transcripts,
    usage,
    waiting,
)
from retinue.operations.base import Operation

OPERATIONS: dict[str, Operation] = {
    operation.name: operation
    for module in (
        envelopes,
        mail,
        sessions,
        session_reading,
        transcripts,
        runs,
        run_list,
        run_trace,
        approvals,
        commands,
        exports,
        cutting,
        deleting,
        waiting,
        agents,
        agent_files,
        agent_prompt,
        models,
        credentials,
        people,
        tokens,
        configuration,
        settings,
        house,
        lanes,
        logs,
        keeping,
        usage,
        policy,
        invoke,
        skills,
        plugins,
        mcp,
        audit,
        doctor,
        notifications,
        questionnaires,
        preferences,
    )
    for operation in module.OPERATIONS
}

POLICY: dict[str, PermissionLevel] = {operation.name: operation.permission for operation in OPERATIONS.values()}
"""What each operation needs, where the house's `permission_policy` does not say otherwise."""
