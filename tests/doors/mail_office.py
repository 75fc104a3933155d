"""A real post office for tests: exim takes mail and puts it into mailboxes, dovecot lets their owners read them.

Both run from a folder of their own on ports of this machine, and are gone when the tests are.
"""

from __future__ import annotations

import asyncio
import email
import email.policy
import getpass
import os
import pwd
import shutil
import signal
import smtplib
import socket
import subprocess
import tempfile
import time
from collections.abc import AsyncGenerator, Callable, Generator
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from email.message import EmailMessage
from email.utils import format_datetime
from pathlib import Path
from random import Random

from retinue.connectors.base import Accept, Incoming, Parcel, Surroundings
from retinue.connectors.mail.connector import MailConnector
from retinue.connectors.mail.settings import MailSettings, Security
from retinue.domain import address
from retinue.domain.attachment import Attachment
from retinue.domain.envelope import NO_CONTEXT, Envelope, Kind, Receipt, Status
from retinue.domain.ids import EnvelopeId
from retinue.domain.ports import Clock
from retinue.domain.trust import Trust
from retinue.real import RealClock

START_S_MAX = 20.0
ARRIVE_S_MAX = 20.0
POLL_S = 0.02
PROGRAMS = {"dovecot": "dovecot-imapd", "exim4": "exim4-daemon-light"}
PEOPLE = ("house", "maria", "noor")
AUTHSERV = "mx.house.test"
HOUSE = "house@house.test"
MARIA = "maria@example.org"

# Its standard input ends when the test process does, even by kill -9, so no server outlives its tests.
CUSTODIAN = 'read _; kill $1 $2; sleep 1; rm -rf "$3"'

EXIM = r"""
{as_whom}
primary_hostname = mx.house.test
spool_directory = {folder}/spool
log_file_path = {folder}/spool/%slog
pid_file_path = {folder}/spool/exim.pid
keep_environment =
deliver_drop_privilege = true
local_interfaces = 127.0.0.1
daemon_smtp_ports = {smtp} : {smtps}
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
  deny local_parts = nobody
       message = 5.1.1 there is no such person
  defer local_parts = later
       message = 4.7.1 come back later
  accept domains = house.test : example.org
  deny message = 5.7.1 not from here
data:
  warn remove_header = Authentication-Results
  warn condition = ${{if eq{{$authenticated_id@example.org}}{{${{lc:${{address:$h_From:}}}}}}}}
       add_header = :at_start:Authentication-Results: mx.house.test; dmarc=pass header.from=example.org
  warn condition = ${{if eq{{$authenticated_id@example.org}}{{${{lc:${{address:$h_From:}}}}}}{{no}}{{yes}}}}
       add_header = :at_start:Authentication-Results: mx.house.test; dmarc=fail header.from=example.org
  accept
begin routers
people:
  driver = accept
  local_parts = house : maria : noor
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
  server_condition = ${{if eq{{$auth3}}{{secret-$auth2}}}}
  server_set_id = $auth2
login:
  driver = plaintext
  public_name = LOGIN
  server_prompts = Username:: : Password::
  server_condition = ${{if eq{{$auth2}}{{secret-$auth1}}}}
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
  driver = static
  args = password=secret-%n
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
}}
service stats {{
  chroot =
}}
"""


class OfficeMissing(Exception):
    """A program is not installed."""


@dataclass
class Office:
    """Where mail is taken and read. Everyone's password is `secret-NAME`."""

    folder: Path
    smtp: int
    smtps: int
    imap: int
    imaps: int
    _running: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)

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
        self._wait_for(program, self.smtp if program == "exim4" else self.imap)

    def _wait_for(self, program: str, port: int) -> None:
        deadline = time.monotonic() + START_S_MAX
        while time.monotonic() < deadline:
            with suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=5) as line:
                if line.recv(1):
                    return
            if self._running[program].poll() is not None:
                break
            time.sleep(POLL_S)
        said = "\n".join(
            each.read_text(errors="replace")
            for each in (self.folder / f"{program}.out", self.folder / "dovecot.log", self.folder / "spool" / "mainlog")
            if each.exists()
        )
        raise AssertionError(f"{program} did not start:\n{said}")

    def stop(self, program: str) -> None:
        process = self._running.pop(program, None)
        if process is None:
            return
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGTERM)
        process.wait(timeout=START_S_MAX)

    @property
    def pids(self) -> list[str]:
        return [str(each.pid) for each in self._running.values()]

    # What people do

    def hand_in(self, raw: bytes, *, sender: str = MARIA, to: str = HOUSE, login: str | None = "maria") -> None:
        """Give a mail to exim, as a person's program would; without a login, as a stranger's server.

        It has arrived then: exim delivers each by a process of its own, and two might overtake each other."""
        before = len(self._files(to.partition("@")[0]))
        with smtplib.SMTP("127.0.0.1", self.smtp) as line:
            if login:
                line.login(login, f"secret-{login}")
            line.sendmail(sender, [to], raw)
        deadline = time.monotonic() + ARRIVE_S_MAX
        while len(self._files(to.partition("@")[0])) == before:
            assert time.monotonic() < deadline, "exim did not deliver"
            time.sleep(POLL_S)

    def _files(self, person: str) -> list[Path]:
        places = (self.folder / "mail" / person / part for part in ("new", "cur"))
        return [each for place in places for each in place.glob("*") if each.is_file()]

    def mailbox(self, person: str) -> list[EmailMessage]:
        """What lies in somebody's mailbox, as the standard library reads it, oldest first."""
        found = self._files(person)
        found.sort(key=lambda each: (each.stat().st_mtime_ns, each.name))
        return [email.message_from_bytes(each.read_bytes(), policy=email.policy.default) for each in found]

    async def arrived(self, person: str, message_id: str) -> EmailMessage:
        """That mail, once it lies in somebody's mailbox."""
        deadline = time.monotonic() + ARRIVE_S_MAX
        while time.monotonic() < deadline:
            for each in self.mailbox(person):
                if str(each["Message-ID"]).strip("<>") == message_id:
                    return each
            await asyncio.sleep(POLL_S)
        raise AssertionError(
            f"{message_id} did not arrive: {[str(each['Message-ID']) for each in self.mailbox(person)]}"
        )

    def read_marks(self, person: str) -> int:
        """How many mails there bear the mark of having been read."""
        return sum("S" in each.name.partition(":2,")[2] for each in (self.folder / "mail" / person / "cur").glob("*"))

    def empty(self) -> None:
        """Every mailbox as it was before the first mail."""
        for person in PEOPLE:
            shutil.rmtree(self.folder / "mail" / person, ignore_errors=True)

    def renumber(self, person: str) -> None:
        """Lose the numbers of a mailbox, as a server does that is restored from a backup."""
        for each in (self.folder / "mail" / person).glob("dovecot*"):
            each.unlink()
        (self.folder / "mail" / person / "dovecot-uidvalidity.7fffffff").touch()


@contextmanager
def running_office() -> Generator[Office]:
    path = f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin"
    missing = [package for program, package in PROGRAMS.items() if shutil.which(program, path=path) is None]
    if missing:
        raise OfficeMissing(
            f"these tests need {', '.join(missing)}\ntry: make system, or apt-get install -y {' '.join(missing)}"
        )
    folder = Path(tempfile.mkdtemp(prefix="retinue-mail-", dir="/tmp"))
    try:
        smtp, smtps, imap, imaps = _free_ports(4)
        office = Office(folder, smtp, smtps, imap, imaps)
        _furnish(office)
        office.start("dovecot")
        office.start("exim4")
        custodian = subprocess.Popen(
            ["sh", "-c", CUSTODIAN, "custodian", *office.pids, str(folder)],
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


def _furnish(office: Office) -> None:
    folder = office.folder
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
    places = {"folder": folder, "smtp": office.smtp, "smtps": office.smtps, "imap": office.imap, "imaps": office.imaps}
    as_whom = f"exim_user = {user.pw_name}\nexim_group = {user.pw_gid}"
    (folder / "exim.conf").write_text(EXIM.format(as_whom=as_whom, **places))
    unprivileged = (
        ""
        if is_root
        else f"default_internal_user = {user.pw_name}\ndefault_login_user = {user.pw_name}\n"
        f"default_internal_group = {group}"
    )
    (folder / "dovecot.conf").write_text(
        DOVECOT.format(user=user.pw_uid, group=group, unprivileged=unprivileged, **places)
    )
    if is_root:
        folder.chmod(0o755)
        for each in ("spool", "mail", "key.pem", "cert.pem"):
            os.chown(folder / each, user.pw_uid, user.pw_gid)
        (folder / "exim.conf").chmod(0o644)


def _free_ports(count: int) -> list[int]:
    taken = [socket.socket() for _ in range(count)]
    try:
        for each in taken:
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in taken]
    finally:
        for each in taken:
            each.close()


# --- mails, parcels, and whoever stands in for the house ---


def mail(
    text: str,
    *,
    sender: str = f"Maria Example <{MARIA}>",
    to: str = HOUSE,
    subject: str = "Lunch",
    message_id: str = "<first@example.org>",
    now: datetime | None = None,
    **fields: str,
) -> EmailMessage:
    made = EmailMessage(policy=email.policy.SMTP)
    made["From"], made["To"], made["Subject"] = sender, to, subject
    made["Date"] = format_datetime(now or RealClock().now())
    made["Message-ID"] = message_id
    for name, value in fields.items():
        made[name.replace("_", "-")] = value
    made.set_content(text)
    return made


def parcel(
    room: str,
    text: str,
    *,
    id: str = "a" * 32,
    quote: str = "",
    files: tuple[Attachment, ...] = (),
    index: int = 0,
    count: int = 1,
) -> Parcel:
    at = datetime(2026, 3, 4, 5, 6, 7, tzinfo=UTC)
    envelope = Envelope(
        seq=1,
        id=EnvelopeId(id),
        sender=address.parse("agent:ada"),
        recipient=address.parse(f"channel:post:{room}"),
        session=None,
        kind=Kind.ANSWER,
        text=text,
        attachments=files,
        context=NO_CONTEXT,
        reply_to=None,
        trust=Trust.AGENT,
        source="run",
        key="1",
        silent=False,
        deliver_at=None,
        expires_at=None,
        due_at=at,
        status=Status.CLAIMED,
        attempts=1,
        accepted_at=at,
        claimed_at=at,
        settled_at=None,
        run=None,
        steered_into=None,
        retry_of=None,
    )
    return Parcel(envelope=envelope, text=text, quote=quote, files=files, index=index, count=count)


class MemoryShelf:
    def __init__(self) -> None:
        self.words: dict[str, str] = {}

    async def get(self, key: str) -> str | None:
        return self.words.get(key)

    async def put(self, key: str, value: str) -> None:
        self.words[key] = value


class Ear:
    """Stands in for the house at `accept`: keeps what it was handed, and says what it is told to say."""

    def __init__(self) -> None:
        self.heard: list[Incoming] = []
        self.refuse = False
        self.fail_times = 0
        self.files: dict[str, bytes] = {}
        self._news = asyncio.Event()

    async def accept(self, incoming: Incoming) -> Receipt | None:
        if self.fail_times:
            self.fail_times -= 1
            raise RuntimeError("the house could not say")
        for each in incoming.files:
            self.files[each.name] = b"".join([chunk async for chunk in each.fetch()])
        self.heard.append(incoming)
        self._news.set()
        return None if self.refuse else Receipt(envelope=EnvelopeId("e" * 32), session=None, news_seq=1)

    async def hears(self, count: int) -> list[Incoming]:
        """What was heard, once it is so many."""
        async with asyncio.timeout(ARRIVE_S_MAX):
            while len(self.heard) < count:
                self._news.clear()
                await self._news.wait()
        return self.heard


def connector(
    office: Office,
    *,
    shelf: MemoryShelf | None = None,
    clock: Clock | None = None,
    password: str = "secret-house",
    path_of: Callable[[Attachment], Path] = lambda _: Path("/nowhere"),
    **settings: object,
) -> MailConnector:
    known: dict[str, object] = {
        "address": HOUSE,
        "display_name": "The House",
        "username": "house",
        "imap_host": "127.0.0.1",
        "imap_port": office.imap,
        "imap_security": Security.NONE,
        "smtp_host": "127.0.0.1",
        "smtp_port": office.smtp,
        "smtp_security": Security.NONE,
        "authserv_id": AUTHSERV,
    }
    around = Surroundings(
        instance="post",
        clock=clock or RealClock(),
        chance=Random(1),
        shelf=shelf or MemoryShelf(),
        path_of=path_of,
        secret=lambda _: password,
    )
    return MailConnector.of(MailSettings(**{**known, **settings}), around)  # type: ignore[arg-type]


@asynccontextmanager
async def listening(made: MailConnector, accept: Accept) -> AsyncGenerator[asyncio.Task[None]]:
    """A connector that listens until the end of the block, or until its line breaks."""
    task = asyncio.create_task(made.listen(accept))
    try:
        yield task
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


# --- a wire that can be cut ---


class Wire:
    """Stands between a client and a real server. `to_server` and `to_client` see each piece: what they give back goes
    on; None cuts the wire there."""

    def __init__(self, port: int) -> None:
        self.port = 0
        self.to_server: Callable[[bytes], bytes | None] = lambda piece: piece
        self.to_client: Callable[[bytes], bytes | None] = lambda piece: piece
        self.frozen = False
        self._target = port
        self._tasks: set[asyncio.Task[None]] = set()
        self._ends: list[asyncio.StreamWriter] = []

    async def _carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        far_reader, far_writer = await asyncio.open_connection("127.0.0.1", self._target)
        self._ends += [writer, far_writer]
        ways = [
            asyncio.create_task(self._one_way(reader, far_writer, lambda piece: self.to_server(piece))),
            asyncio.create_task(self._one_way(far_reader, writer, lambda piece: self.to_client(piece))),
        ]
        try:
            await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for end in (writer, far_writer):
                end.transport.abort()
            for way in ways:
                way.cancel()
            await asyncio.gather(*ways, return_exceptions=True)
            self._tasks.discard(task)

    async def _one_way(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, see: Callable[[bytes], bytes | None]
    ) -> None:
        while piece := await reader.read(65536):
            while self.frozen:
                await asyncio.sleep(POLL_S)
            seen = see(piece)
            if seen is None:
                return
            writer.write(seen)
            await writer.drain()

    @staticmethod
    @asynccontextmanager
    async def to(port: int) -> AsyncGenerator[Wire]:
        wire = Wire(port)
        server = await asyncio.start_server(wire._carry, "127.0.0.1", 0)
        wire.port = server.sockets[0].getsockname()[1]
        try:
            yield wire
        finally:
            server.close()
            wire.frozen = False
            for end in wire._ends:
                end.transport.abort()
            await asyncio.gather(*wire._tasks)
            await asyncio.sleep(0)  # transports that were broken off are gone with the next round of the loop
            await server.wait_closed()
