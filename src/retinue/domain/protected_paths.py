"""Paths that no agent may access, and paths of keys, which an agent may access only if a grant names them."""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache
from pathlib import Path, PurePosixPath

from msgspec import Struct

from retinue.domain.permission import is_within

CREATED_AGENTS_FOLDER = "staff"  # in an agent directory: workspaces of the agents that it created

# Kernel files, which expose the memory and environment of every process.
KERNEL_FOLDERS = ("/proc", "/sys", "/dev")

# Where keys are stored, in a user's home directory and in the system. A grant of a parent folder does not include them.
USER_KEY_PATHS = (
    ".ssh",
    ".gnupg",
    ".aws",
    ".azure",
    ".kube",
    ".docker",
    ".oci",
    ".netrc",
    ".pgpass",
    ".my.cnf",
    ".npmrc",
    ".pypirc",
    ".boto",
    ".s3cfg",
    ".git-credentials",
    ".vault-token",
    ".password-store",
    ".pki",
    ".mozilla",
    ".thunderbird",
    ".terraform.d/credentials.tfrc.json",
    ".cargo/credentials",
    ".cargo/credentials.toml",
    ".gem/credentials",
    ".m2/settings.xml",
    ".m2/settings-security.xml",
    ".claude",
    ".claude.json",
    ".codex",
    ".gemini",
    ".config/chromium",
    ".config/gcloud",
    ".config/gh",
    ".config/git/credentials",
    ".config/google-chrome",
    ".config/op",
    ".config/rclone",
    ".config/sops",
    ".local/share/keyrings",
    ".local/share/kwalletd",
)
SYSTEM_KEY_PATHS = (
    "/etc/shadow",
    "/etc/shadow-",
    "/etc/gshadow",
    "/etc/gshadow-",
    "/etc/ssh",
    "/etc/ssl/private",
    "/etc/sudoers",
    "/etc/sudoers.d",
    "/etc/wireguard",
    "/run/credentials",
    "/run/secrets",
    "/run/user",
    "/var/run/secrets",
)


class ProtectedPaths(Struct, frozen=True, kw_only=True):
    """Paths that no agent may access, and paths of keys, which an agent may access only if a grant names them.

    No agent may access the server's data, other agents' directories or kernel files, even with a grant. The keys are
    those of the system and of the user who runs the server. `data_directory` is RETINUE_HOME. All paths, in fields and
    arguments, must be resolved.
    """

    data_directory: Path | None = None
    user_home: Path | None = None

    def denied_because(self, path: str, *, agent_directory: Path, workspace: Path, granted: Iterable[Path]) -> str:
        """Return why access to a path is denied, or an empty string if it is not denied.

        A grant gives access to keys only if it names their folder or a path in that folder. A grant of `~/.ssh` does,
        but a grant of `~` does not.
        """
        if any(is_within(path, folder) for folder in KERNEL_FOLDERS):
            return "no agent may access files of the operating system"
        if (
            self.data_directory is not None
            and is_within(path, str(self.data_directory))
            and not self._is_agent_path(path, agent_directory, workspace)
        ):
            return "agents may not access the server's own state"
        for keys in self._key_paths():
            if is_within(path, keys) and not any(is_within(str(root), keys) for root in granted):
                return f"{keys} contains keys; only a grant that names it gives access"
        return ""

    def _key_paths(self) -> tuple[str, ...]:
        return (
            SYSTEM_KEY_PATHS if self.user_home is None else (*SYSTEM_KEY_PATHS, *_user_key_paths(str(self.user_home)))
        )

    def _is_agent_path(self, path: str, agent_directory: Path, workspace: Path) -> bool:
        if is_within(path, str(agent_directory)):
            return True
        # A workspace inside the data directory counts as the agent's own, unless it contains other agent directories.
        agents, own = str(agent_directory.parent), str(workspace)
        return (
            is_within(path, own)
            and own != str(self.data_directory)
            and is_within(own, str(self.data_directory))
            and (is_lent_workspace(own, agents) if is_within(own, agents) else not is_within(agents, own))
        )


def is_lent_workspace(workspace: str, agent_directories: str) -> bool:
    """Whether a workspace inside another agent's directory belongs to an agent that the other agent created.

    Such a workspace is the folder `AGENTS/ADA/staff/BERT`, or a folder in it.
    """
    parts = (
        PurePosixPath(workspace).relative_to(agent_directories).parts if is_within(workspace, agent_directories) else ()
    )
    return len(parts) >= 3 and parts[1] == CREATED_AGENTS_FOLDER


@lru_cache(maxsize=8)
def _user_key_paths(user_home: str) -> tuple[str, ...]:
    return tuple(f"{user_home.rstrip('/')}/{name}" for name in USER_KEY_PATHS)
