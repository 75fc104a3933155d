// Moments as the house writes them: what the clock on the wall shows in their zone, and its offset. They are shown as
// that clock shows them, wherever the browser is: "at nine" is nine o'clock where the schedule goes by.

const format = (more: Intl.DateTimeFormatOptions): Intl.DateTimeFormat => new Intl.DateTimeFormat(undefined, { timeZone: "UTC", ...more });
const minutes = format({ hour: "2-digit", minute: "2-digit" });
const seconds = format({ hour: "2-digit", minute: "2-digit", second: "2-digit" });
const day = format({ weekday: "short", day: "numeric", month: "short" });
const dayOfYear = format({ weekday: "short", day: "numeric", month: "short", year: "numeric" });
const weekday = format({ weekday: "long" });
const date = format({ day: "numeric", month: "short" });

const DAY_MS = 86_400_000;

const wall = (at: string): Date => new Date(`${at.slice(0, 19)}Z`);

export function timeOf(at: string): string {
  return (at.slice(17, 19) === "00" ? minutes : seconds).format(wall(at));
}

/** "Mon, Nov 16, 09:00"; with the year where it is not this one. */
export function momentOf(at: string, now: string = new Date().toISOString()): string {
  return `${(at.slice(0, 4) === now.slice(0, 4) ? day : dayOfYear).format(wall(at))}, ${timeOf(at)}`;
}

const MOMENT = /\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(?:[+-]\d\d:\d\d|Z)/g;

/** What the house says of times, with its moments as people read them; by the clock that another moment goes by. */
export function spoken(words: string, like = ""): string {
  return words.replace(MOMENT, (at) => momentOf(like ? byClockOf(at, like) : at));
}

function byClockOf(at: string, like: string): string {
  const [, sign = "+", hours = 0, minutes = 0] = /([+-])(\d\d):(\d\d)$/.exec(like) ?? [];
  const shiftMs = (Number(hours) * 60 + Number(minutes)) * 60_000 * (sign === "-" ? -1 : 1);
  return new Date(Date.parse(at) + shiftMs).toISOString().slice(0, 19) + like.slice(19);
}

/** Its day, as a key that sorts. */
export const dayOf = (at: string): string => at.slice(0, 10);

export const weekdayOf = (day: string): string => weekday.format(new Date(`${day}T00:00:00Z`));
export const dateOf = (day: string): string => date.format(new Date(`${day}T00:00:00Z`));

/** So many days, of which the first is the one of this moment. */
export function daysFrom(at: string, count: number): string[] {
  const first = Date.parse(`${dayOf(at)}T00:00:00Z`);
  return Array.from({ length: count }, (_, i) => new Date(first + i * DAY_MS).toISOString().slice(0, 10));
}
