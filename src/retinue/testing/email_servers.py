"""Real email servers for tests: exim accepts email, dovecot serves the mailboxes.

Both run from a temporary folder on loopback ports, and end with the tests.
"""

from __future__ import annotations

import email
import email.policy
import getpass
import imaplib
import os
import pwd
import re
import shutil
import signal
import smtplib
import socket
import subprocess
import tempfile
from collections.abc import Generator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from email.message import EmailMessage
from pathlib import Path

from retinue.testing.free_ports import free_port
from retinue.testing.wait_conditions import WAIT_LIMIT_S, wait_until, wait_until_sync

PROGRAMS = {"dovecot": "dovecot-imapd", "exim4": "exim4-daemon-light"}
MAILBOXES = ("retinue", "maria", "noor")
AUTHSERV = "mx.retinue.test"
SERVER_ADDRESS = "retinue@retinue.test"
MARIA_ADDRESS = "maria@example.org"

# The input of this script ends when the test process does, even by kill -9, so no server outlives its tests.
CLEANUP_SCRIPT = 'read _; kill $(cat "$1"/*.pid); sleep 1; rm -rf "$1"'

EXIM = r"""
{as_whom}
primary_hostname = mx.retinue.test
spool_directory = {folder}/spool
log_file_path = {folder}/spool/%slog
pid_file_path = {folder}/spool/exim.pid
keep_environment =
deliver_drop_privilege = true
local_interfaces = 127.0.0.1
daemon_smtp_ports = {smtp} : {smtps}
daemon_startup_sleep = 1s
tls_on_connect_ports = {smtps}
tls_advertise_hosts = *
tls_certificate = {folder}/cert.pem
tls_privatekey = {folder}/key.pem
host_lookup =
rfc1413_hosts =
dkim_verify_signers =
recipients_max = 10
message_size_limit = 3M
acl_smtp_rcpt = rcpt
acl_smtp_data = data
begin acl
rcpt:
  deny local_parts = unknown
       message = 5.1.1 there is no such person
  deny local_parts = maria
       condition = ${{if exists{{{folder}/spool/closed}}}}
       message = 5.2.1 this mailbox is closed
  defer condition = ${{if exists{{{busy}}}{{${{run{{/bin/rm -f {busy}}}{{yes}}{{yes}}}}}}{{no}}}}
       message = 4.3.2 not now
  defer local_parts = later
       message = 4.7.1 come back later
  accept domains = retinue.test : example.org
  deny message = 5.7.1 not from here
data:
  warn remove_header = Authentication-Results
  warn condition = ${{if eq{{$authenticated_id@example.org}}{{${{lc:${{address:$h_From:}}}}}}}}
       add_header = :at_start:Authentication-Results: mx.retinue.test; dmarc=pass header.from=example.org
  warn condition = ${{if eq{{$authenticated_id@example.org}}{{${{lc:${{address:$h_From:}}}}}}{{no}}{{yes}}}}
       add_header = :at_start:Authentication-Results: mx.retinue.test; dmarc=fail header.from=example.org
  accept
begin routers
people:
  driver = accept
  local_parts = retinue : maria : noor
  transport = mailbox
begin transports
mailbox:
  driver = appendfile
  directory = {folder}/mail/$local_part_data
  maildir_format
  return_path_add
begin authenticators
plain:
  driver = plaintext
  public_name = PLAIN
  server_prompts = :
  server_condition = ${{if eq{{$auth3}}{{${{lookup{{$auth2}}lsearch{{{folder}/spool/passwords}}}}}}}}
  server_set_id = $auth2
login:
  driver = plaintext
  public_name = LOGIN
  server_prompts = Username:: : Password::
  server_condition = ${{if eq{{$auth2}}{{${{lookup{{$auth1}}lsearch{{{folder}/spool/passwords}}}}}}}}
  server_set_id = $auth1
"""

DOVECOT = """
base_dir = {folder}/run
state_dir = {folder}/state
log_path = {folder}/dovecot.log
protocols = imap
listen = 127.0.0.1
ssl = yes
ssl_cert = <{folder}/cert.pem
ssl_key = <{folder}/key.pem
disable_plaintext_auth = no
auth_mechanisms = plain login
auth_failure_delay = 0
mail_location = maildir:{folder}/mail/%n
first_valid_uid = 1
first_valid_gid = 1
passdb {{
  driver = passwd-file
  args = scheme=PLAIN {folder}/spool/passwords
}}
userdb {{
  driver = static
  args = uid={user} gid={group} home={folder}/mail/%n
}}
{unprivileged}
service imap-login {{
  chroot =
  process_min_avail = 1
  inet_listener imap {{
    port = {imap}
  }}
  inet_listener imaps {{
    port = {imaps}
  }}
}}
service anvil {{
  chroot =
  unix_listener anvil-auth-penalty {{
    mode = 0
  }}
}}
service stats {{
  chroot =
}}
"""


_ID = re.compile(r"\sid ([0-9A-Za-z]{6})-([0-9A-Za-z]+)-([0-9A-Za-z]+)")  # second, process, fraction of the second


def _accepted_at(message: EmailMessage) -> tuple[str, str]:
    """Return the time at which a server accepted an email, as encoded in the id that the server gave to the email.

    The process number in the id is left out, because it does not always increase.
    """
    found = _ID.search(str(message["Received"]))
    return (found[1], found[3]) if found else ("", "")


class EmailServersMissing(Exception):
    """exim or dovecot is not installed."""


@dataclass
class EmailServers:
    """The two email servers of a test. The password of a person is `secret-NAME`."""

    folder: Path
    smtp: int
    smtps: int
    imap: int
    imaps: int
    _running: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict[str, subprocess.Popen[bytes]])

    @property
    def ca_bundle(self) -> str:
        return str(self.folder / "cert.pem")

    def start(self, program: str) -> None:
        commands = {
            "exim4": ["exim4", "-C", str(self.folder / "exim.conf"), "-bdf", "-q1m"],
            "dovecot": ["dovecot", "-F", "-c", str(self.folder / "dovecot.conf")],
        }
        path = f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin"
        with (self.folder / f"{program}.out").open("wb") as output:
            self._running[program] = subprocess.Popen(
                [shutil.which(commands[program][0], path=path) or program, *commands[program][1:]],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )
        self._pid_file(program).write_text(f"{self._running[program].pid}\n")
        self._wait_for(program, self.smtp if program == "exim4" else self.imap)

    def _wait_for(self, program: str, port: int) -> None:
        def answers() -> bool:
            assert self._running[program].poll() is None, f"{program} ended:\n{self._read_logs(program)}"
            with suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=WAIT_LIMIT_S) as line:
                return bool(line.recv(1))
            return False

        wait_until_sync(answers, f"{program} answers", describe=lambda: self._read_logs(program))

    def _read_logs(self, program: str) -> str:
        logs = (self.folder / f"{program}.out", self.folder / "dovecot.log", self.folder / "spool" / "mainlog")
        return "\n".join(each.read_text(errors="replace") for each in logs if each.exists())

    def stop(self, program: str) -> None:
        process = self._running.pop(program, None)
        if process is None:
            return
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGTERM)
        process.wait(timeout=WAIT_LIMIT_S)
        self._pid_file(program).unlink(missing_ok=True)

    def _pid_file(self, program: str) -> Path:
        return self.folder / f"{program}.pid"

    def restart(self) -> None:
        for program in PROGRAMS:
            self.stop(program)
            self.start(program)

    # --- faults ---

    def set_password(self, person: str, password: str) -> None:
        """Change the password of one person, and return once dovecot uses the new password.

        dovecot checks for a change every second.
        """
        self.write_passwords({person: password})
        wait_until_sync(lambda: self._can_log_in(person, password), "dovecot uses the new password")

    def write_passwords(self, other: Mapping[str, str]) -> None:
        current = self.folder / "spool" / "passwords"
        fresh = current.with_suffix(".new")
        fresh.write_text("".join(f"{each}:{other.get(each, f'secret-{each}')}\n" for each in MAILBOXES))
        if current.exists():  # same owner and mode as before
            before = current.stat()
            os.chown(fresh, before.st_uid, before.st_gid)
            fresh.chmod(before.st_mode)
        fresh.rename(current)

    def _can_log_in(self, person: str, password: str) -> bool:
        line = imaplib.IMAP4("127.0.0.1", self.imap, timeout=WAIT_LIMIT_S)
        try:
            line.login(person, password)
        except imaplib.IMAP4.error:
            return False
        finally:
            line.shutdown()
        return True

    def refuse_next(self) -> None:
        """Make the email server refuse the next email with a temporary error."""
        (self.folder / "spool" / "busy").touch()

    def set_mailbox_closed(self, *, closed: bool) -> None:
        """Make maria's mailbox refuse every email with a permanent error, or accept emails again."""
        mark = self.folder / "spool" / "closed"
        mark.touch() if closed else mark.unlink(missing_ok=True)

    # --- what people do ---

    def send_email(
        self, raw: bytes, *, sender: str = MARIA_ADDRESS, to: str = SERVER_ADDRESS, login: str | None = "maria"
    ) -> None:
        """Send an email through exim as a person's email client would.

        Without `login`, send it as an unknown email server would. Returns once the email has been
        delivered. If it returned earlier, two emails could arrive in the wrong order, because exim
        delivers each in a separate process.
        """
        before = len(self._files(to.partition("@")[0]))
        with smtplib.SMTP("127.0.0.1", self.smtp) as line:
            if login:
                line.login(login, f"secret-{login}")
            line.sendmail(sender, [to], raw)
        wait_until_sync(lambda: len(self._files(to.partition("@")[0])) != before, "exim has delivered the mail")

    def _files(self, person: str) -> list[Path]:
        places = (self.folder / "mail" / person / part for part in ("new", "cur"))
        # By the part of the name before the flags: dovecot may move a file to `cur` while this lists both folders.
        found = {each.name.partition(":")[0]: each for place in places for each in place.glob("*") if each.is_file()}
        return list(found.values())

    def read_mailbox(self, person: str) -> list[EmailMessage]:
        """Return the emails in a mailbox, oldest first."""
        read = [
            email.message_from_bytes(each.read_bytes(), policy=email.policy.default) for each in self._files(person)
        ]
        # In the order of acceptance, because each is delivered by a separate process.
        return sorted(read, key=_accepted_at)

    def _is_delivered(self) -> bool:
        return not any((self.folder / "spool" / "input").glob("**/*-[HDJ]"))

    async def wait_until_delivered(self) -> None:
        """Wait until every email that exim has accepted is in its mailbox."""
        await wait_until(self._is_delivered, "exim has delivered every mail")

    async def wait_for_email(self, person: str, message_id: str) -> EmailMessage:
        """Wait until an email is in a mailbox, and return it."""

        def found() -> list[EmailMessage]:
            return [each for each in self.read_mailbox(person) if str(each["Message-ID"]).strip("<>") == message_id]

        there = await wait_until(
            found,
            f"{message_id} is in the mailbox of {person}",
            describe=lambda: [str(each["Message-ID"]) for each in self.read_mailbox(person)],
        )
        return there[0]

    def count_read(self, person: str) -> int:
        """Return how many emails in a mailbox are marked as read."""
        return sum("S" in each.name.partition(":2,")[2] for each in (self.folder / "mail" / person / "cur").glob("*"))

    def empty_mailboxes(self) -> None:
        """Remove all emails of every mailbox, and the emails that exim has accepted but not yet delivered."""
        wait_until_sync(self._is_delivered, "exim has delivered every mail")
        for person in MAILBOXES:
            shutil.rmtree(self.folder / "mail" / person, ignore_errors=True)

    def reset_uid_validity(self, person: str) -> None:
        """Change the UIDVALIDITY of a mailbox, as a restore from a backup does."""
        for each in (self.folder / "mail" / person).glob("dovecot*"):
            each.unlink()
        (self.folder / "mail" / person / "dovecot-uidvalidity.7fffffff").touch()


@contextmanager
def run_email_servers() -> Generator[EmailServers]:
    path = f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin"
    missing = [package for program, package in PROGRAMS.items() if shutil.which(program, path=path) is None]
    if missing:
        raise EmailServersMissing(
            f"these tests need {', '.join(missing)}\ntry: make system, or apt-get install -y {' '.join(missing)}"
        )
    folder = Path(tempfile.mkdtemp(prefix="retinue-mail-", dir="/tmp"))
    try:
        smtp, smtps, imap, imaps = (free_port() for _ in range(4))
        office = EmailServers(folder, smtp, smtps, imap, imaps)
        _write_configuration(office)
        office.start("dovecot")
        office.start("exim4")
        custodian = subprocess.Popen(
            ["sh", "-c", CLEANUP_SCRIPT, "custodian", str(folder)],
            stdin=subprocess.PIPE,
            start_new_session=True,
        )
        try:
            yield office
        finally:
            custodian.kill()
            custodian.wait()
            assert custodian.stdin is not None
            custodian.stdin.close()
            office.stop("exim4")
            office.stop("dovecot")
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _write_configuration(servers: EmailServers) -> None:
    folder = servers.folder
    is_root = os.geteuid() == 0
    user = pwd.getpwnam("Debian-exim") if is_root else pwd.getpwnam(getpass.getuser())
    group = str(user.pw_gid)
    for each in ("spool", "mail", "run", "state"):
        (folder / each).mkdir()
    key = "-newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -keyout key.pem"
    certificate = "-x509 -days 2 -subj /CN=localhost -out cert.pem"
    subprocess.run(
        ["openssl", "req", *key.split(), *certificate.split(), "-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1"],
        cwd=folder,
        check=True,
        capture_output=True,
    )
    places = {
        "folder": folder,
        "smtp": servers.smtp,
        "smtps": servers.smtps,
        "imap": servers.imap,
        "imaps": servers.imaps,
    }
    as_whom = f"exim_user = {user.pw_name}\nexim_group = {user.pw_gid}"
    (folder / "exim.conf").write_text(EXIM.format(as_whom=as_whom, busy=folder / "spool" / "busy", **places))
    unprivileged = (
        ""
        if is_root
        else f"default_internal_user = {user.pw_name}\ndefault_login_user = {user.pw_name}\n"
        f"default_internal_group = {group}"
    )
    (folder / "dovecot.conf").write_text(
        DOVECOT.format(user=user.pw_uid, group=group, unprivileged=unprivileged, **places)
    )
    servers.write_passwords({})
    if is_root:  # both servers run processes as other users, whom a strict umask would keep out
        for each in ("", "spool", "mail", "run", "state"):
            (folder / each).chmod(0o755)
        for each in ("spool", "spool/passwords", "mail", "key.pem", "cert.pem"):
            os.chown(folder / each, user.pw_uid, user.pw_gid)
        for each in ("spool/passwords", "exim.conf", "dovecot.conf", "cert.pem"):
            (folder / each).chmod(0o644)
