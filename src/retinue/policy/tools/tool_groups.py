"""Groups, profiles and aliases of tools. Expands the entries of a tool list to tool names."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from retinue.domain import renamed_names
from retinue.text.glob_match import matches_glob

EVERYTHING = "*"
GROUP_PREFIX = "group:"
PLUGINS = "plugins"

_FILES = ("read", "write", "edit", "ls", "find")
_COMMANDS = ("exec", "process")
_SESSIONS = ("sessions_list", "sessions_history", "sessions_send", "sessions_spawn")
_PANELS = (
    *("panels_list", "panels_selected", "panels_tree"),
    *("panels_open", "panels_close", "panels_move", "panels_replace", "panels_focus"),
)
_MEMORY = ("memory_search", "memory_get", "memory_write")
# Tools only for messages from a channel: without one, there is no message to react to and no channel to send a file to.
CHANNEL_TOOLS = ("send_file", "react")
_MESSAGING = ("message", "notify", "ask_questions", *CHANNEL_TOOLS)

# What a schedule keeps between occurrences: only for sessions of a schedule.
SCHEDULE_TOOLS = ("cron_read_task", "cron_read_memory", "cron_write_memory")

GROUPS: Mapping[str, tuple[str, ...]] = {
    "file": _FILES,
    "fs": _FILES,
    "exec": _COMMANDS,
    "runtime": _COMMANDS,
    "web": ("web_search", "web_fetch", "browser", "browser_act"),
    "sessions": _SESSIONS,
    "admin": ("gateway", "agents_list", "cron"),
    "memory": _MEMORY,
    "messaging": _MESSAGING,
    "panels": (*_PANELS, "open_url"),
    "automation": ("cron", "gateway"),
    "schedules": ("cron", "schedule_*", "reminder_*", "wakeup_*", "heartbeat_*", *SCHEDULE_TOOLS),
    "agents": (
        *("agents_list", "agents_message", "agents_switch", "send_agent_message", "start_background_agent"),
        "create_permanent_agent",
    ),
    "permissions": ("request_permission", "request_permission_via_parent", "grant_permission"),
}

PROFILES: Mapping[str, tuple[str, ...]] = {
    "minimal": ("session_status",),
    "coding": (*_FILES, *_COMMANDS, *_SESSIONS, *_MEMORY, "session_status"),
    "messaging": (
        *_MESSAGING,
        "sessions_list",
        "sessions_history",
        "sessions_send",
        "session_status",
    ),
    "full": (EVERYTHING,),
}

ALIASES: Mapping[str, str] = {"bash": "exec", "shell": "exec"}

UNAVAILABLE_TOOLS: Mapping[str, str] = {
    "whatsapp_login": "there is no WhatsApp connector, so there is no account to sign in to",
}
"""Tools known from other systems that this server does not have, each with the reason."""

# A subagent works for another agent. It spawns no agents, messages no person, reaches no session but
# its parent's, and changes nothing permanent.
SUBAGENT_DENIED = (
    *_SESSIONS,
    *_MESSAGING,
    *("gateway", "agents_list", "whatsapp_login", "session_status", "cron", "memory_search", "memory_get"),
    *("agents_message", "start_background_agent", "schedule_*", "grant_permission", "memory_write"),
    "create_permanent_agent",
)

# Tools that cannot be called directly, without a run, unless the owner allows it.
INVOKE_DENIED = (
    *("exec", "process", "write", "edit", "browser", "browser_act", "sessions_spawn", "sessions_send", "gateway"),
)


# Calls that only the owner may approve: changes to settings, and operations that need a privileged caller.
OWNER_DECIDES = frozenset(
    {
        "gateway",
        *("agent_register", "agent_set", "agent_restore", "agent_delete", "agent_create_permanent", "agent_write_file"),
        *("credential_add", "credential_remove", "credential_order", "credential_mark_used", "credential_mark_failed"),
        *("credential_clear", "person_invite", "person_role", "person_forget"),
        *(
            "config_patch",
            "config_reload",
            "config_apply",
            "server_backup",
            "server_purge",
            "grant_add",
            "grant_revoke",
        ),
        *("tool_invoke", "skill_approve", "skill_revoke", "skill_export", "session_set_sending"),
        *("plugin_patch", "plugin_replace", "plugin_enable", "plugin_disable", "plugin_reload"),
        *("hook_enable", "hook_disable", "mcp_approve", "mcp_revoke", "mcp_restart"),
        *("connector_add", "connector_remove", "connector_enable", "connector_disable"),
        *("poison_message_retry", "poison_message_drop", "binding_set", "binding_remove"),
        *("pairing_accept", "pairing_refuse", "pairing_revoke", "identity_link", "identity_unlink"),
    }
)


def expand_entries(entries: Iterable[str], sources: Mapping[str, tuple[str, ...]]) -> tuple[str, ...]:
    """Expand the entries of a tool list to globs for tool names.

    `sources` has the tools of each plugin and MCP server.
    """
    globs: list[str] = []
    for entry in entries:
        name = entry.casefold()
        group = name.removeprefix(GROUP_PREFIX)
        if name.startswith(GROUP_PREFIX):
            found = [
                tools for known, tools in (*GROUPS.items(), *_list_plugin_groups(sources)) if matches_glob(group, known)
            ]
            globs += (tool for tools in found for tool in tools)
        elif name in GROUPS and name != "exec":  # `exec` alone is the tool
            globs += GROUPS[name]
        elif name in sources:
            globs += sources[name]
        else:
            # A list that denies the old name of a tool still denies the tool.
            globs.append(ALIASES.get(name) or renamed_names.TOOLS.get(name, name))
    return tuple(dict.fromkeys(globs))


def _list_plugin_groups(sources: Mapping[str, tuple[str, ...]]) -> list[tuple[str, tuple[str, ...]]]:
    """Return the tools of each source under its name, and those of all sources as `plugins`."""
    return [*sources.items(), (PLUGINS, tuple(tool for tools in sources.values() for tool in tools))]
