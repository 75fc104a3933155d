// Times of schedules. The server sends local times with their UTC offset. They are shown in the time zone of the
// schedule, whatever the time zone of the browser is.

const format = (more: Intl.DateTimeFormatOptions): Intl.DateTimeFormat => new Intl.DateTimeFormat(undefined, { timeZone: "UTC", ...more });
const minutes = format({ hour: "2-digit", minute: "2-digit" });
const seconds = format({ hour: "2-digit", minute: "2-digit", second: "2-digit" });
const day = format({ weekday: "short", day: "numeric", month: "short" });
const dayOfYear = format({ weekday: "short", day: "numeric", month: "short", year: "numeric" });
const weekday = format({ weekday: "long" });
const date = format({ day: "numeric", month: "short" });

const DAY_MS = 86_400_000;

const readLocalTime = (at: string): Date => new Date(`${at.slice(0, 19)}Z`);

export function formatTimeOfDay(at: string): string {
  return (at.slice(17, 19) === "00" ? minutes : seconds).format(readLocalTime(at));
}

/** "Mon, Nov 16, 09:00", with the year if it is not the current one. */
export function formatZonedTime(at: string, now: string = new Date().toISOString()): string {
  return `${(at.slice(0, 4) === now.slice(0, 4) ? day : dayOfYear).format(readLocalTime(at))}, ${formatTimeOfDay(at)}`;
}

const TIMESTAMP = /\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(?:[+-]\d\d:\d\d|Z)/g;

/** Replace the timestamps in a text of the server, in their own time zone or in the one of `like`. */
export function localizeTimes(text: string, like = ""): string {
  return text.replace(TIMESTAMP, (at) => formatZonedTime(like ? convertToZoneOf(at, like) : at));
}

function convertToZoneOf(at: string, like: string): string {
  const [, sign = "+", hours = 0, minutes = 0] = /([+-])(\d\d):(\d\d)$/.exec(like) ?? [];
  const shiftMs = (Number(hours) * 60 + Number(minutes)) * 60_000 * (sign === "-" ? -1 : 1);
  return new Date(Date.parse(at) + shiftMs).toISOString().slice(0, 19) + like.slice(19);
}

/** The day of a timestamp, as a sortable key. */
export const getDay = (at: string): string => at.slice(0, 10);

export const formatWeekday = (day: string): string => weekday.format(new Date(`${day}T00:00:00Z`));
export const formatDate = (day: string): string => date.format(new Date(`${day}T00:00:00Z`));

/** `count` days, starting with the day of a timestamp. */
export function listDays(at: string, count: number): string[] {
  const first = Date.parse(`${getDay(at)}T00:00:00Z`);
  return Array.from({ length: count }, (_, i) => new Date(first + i * DAY_MS).toISOString().slice(0, 10));
}
