// Numbers, times and addresses as people read them.

const relative = new Intl.RelativeTimeFormat(undefined, { numeric: "auto", style: "short" });
const clock = new Intl.DateTimeFormat(undefined, { hour: "2-digit", minute: "2-digit" });
const day = new Intl.DateTimeFormat(undefined, { day: "numeric", month: "short" });
const exact = new Intl.DateTimeFormat(undefined, { dateStyle: "medium", timeStyle: "medium" });
const count = new Intl.NumberFormat();
const cents = new Intl.NumberFormat(undefined, { minimumFractionDigits: 2, maximumFractionDigits: 2 });
const compact = new Intl.NumberFormat(undefined, { notation: "compact", maximumFractionDigits: 1 });

const MINUTE_MS = 60_000;
const HOUR_MS = 60 * MINUTE_MS;
const DAY_MS = 24 * HOUR_MS;

export function formatDateTime(at: string | number): string {
  return exact.format(new Date(at));
}

/** "3 min. ago", "yesterday", "in 2 hr". */
export function formatRelativeTime(at: string | number, now: number = Date.now()): string {
  const ms = new Date(at).getTime() - now;
  const size = Math.abs(ms);
  if (size < MINUTE_MS) return ms > 0 ? relative.format(Math.ceil(ms / 1000), "second") : "now";
  if (size < HOUR_MS) return relative.format(Math.round(ms / MINUTE_MS), "minute");
  if (size < DAY_MS) return relative.format(Math.round(ms / HOUR_MS), "hour");
  if (size < 30 * DAY_MS) return relative.format(Math.round(ms / DAY_MS), "day");
  return day.format(new Date(at));
}

/** The time of day; with the date if it is not today. */
export function formatTime(at: string | number): string {
  const then = new Date(at);
  return then.toDateString() === new Date().toDateString() ? clock.format(then) : `${day.format(then)}, ${clock.format(then)}`;
}

/** "120 ms", "3.4 s", "2 min 5 s". */
export function formatDuration(ms: number): string {
  if (ms < 1_000) return `${Math.round(ms)} ms`;
  if (ms < MINUTE_MS) return `${(ms / 1000).toFixed(ms < 10_000 ? 1 : 0)} s`;
  if (ms < HOUR_MS) return `${Math.floor(ms / MINUTE_MS)} min ${Math.round((ms % MINUTE_MS) / 1000)} s`;
  return `${Math.floor(ms / HOUR_MS)} h ${Math.round((ms % HOUR_MS) / MINUTE_MS)} min`;
}

/** An amount in millionths of a US dollar, as dollars. */
export function formatCost(microusd: number): string {
  const dollars = microusd / 1_000_000;
  if (dollars === 0) return "$0";
  if (Math.abs(dollars) < 0.01) return `$${dollars.toFixed(4)}`;
  return `$${Number.isInteger(dollars) ? count.format(dollars) : cents.format(dollars)}`;
}

export function formatNumber(number: number): string {
  return number < 10_000 ? count.format(number) : compact.format(number);
}

export function formatBytes(size: number): string {
  if (size < 1_000) return `${size} B`;
  if (size < 1_000_000) return `${(size / 1_000).toFixed(1)} kB`;
  return `${(size / 1_000_000).toFixed(1)} MB`;
}

export function pluralize(number: number, singular: string, plural: string): string {
  return `${formatNumber(number)} ${number === 1 ? singular : plural}`;
}

/** The name in an address: `agent:ada/12ab` is "ada", `person:owner` is "owner". */
export function parseAddressName(address: string): string {
  const [, rest = address] = /^[a-z]+:(.*)$/.exec(address) ?? [];
  return rest.split("/")[0] ?? rest;
}

/** The session in an address: "12ab" in `agent:ada/12ab`. Empty if it has none. */
export function parseAddressSession(address: string): string {
  return /^agent:[^/]+\/([0-9a-f]+)$/.exec(address)?.[1] ?? "";
}

/** Replace the control characters that reverse the reading direction: `photo\u{202e}gnp.exe` would look like a picture. */
export function replaceBidiControls(text: string): string {
  return text.replace(/[\u202a-\u202e\u2066-\u2069]/g, "\u{fffd}");
}
