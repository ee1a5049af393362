// Numbers, times and money in the reader's language.
const locale = typeof navigator === "undefined" ? "en" : navigator.language;
const whole = new Intl.NumberFormat(locale, { maximumFractionDigits: 0 });
const tenths = new Intl.NumberFormat(locale, { maximumFractionDigits: 1 });
const clock = new Intl.DateTimeFormat(locale, { hour: "2-digit", minute: "2-digit" });
const shortDay = new Intl.DateTimeFormat(locale, { day: "numeric", month: "short" });
const day = new Intl.DateTimeFormat(locale, { day: "numeric", month: "short", year: "numeric" });

export const count = (value: number) => whole.format(value);

/** Format a count with its noun: `3 pages`. */
export const things = (value: number, one: string, many = `${one}s`) => `${count(value)} ${value === 1 ? one : many}`;

export function duration(ms: number): string {
  const seconds = ms / 1000;
  if (seconds < 10) return `${tenths.format(seconds)} s`;
  if (seconds < 60) return `${whole.format(seconds)} s`;
  const minutes = Math.floor(seconds / 60);
  if (minutes < 60) return `${minutes} min ${whole.format(Math.floor(seconds % 60))} s`;
  return `${whole.format(Math.floor(minutes / 60))} h ${minutes % 60} min`;
}

export function size(bytes: number): string {
  if (bytes < 1000) return `${whole.format(bytes)} B`;
  if (bytes < 1e6) return `${whole.format(bytes / 1000)} kB`;
  return `${tenths.format(bytes / 1e6)} MB`;
}

export function money(dollars: number): string {
  const digits = dollars >= 1 ? 2 : dollars >= 0.01 ? 3 : 5;
  return new Intl.NumberFormat(locale, {
    style: "currency",
    currency: "USD",
    minimumFractionDigits: 2,
    maximumFractionDigits: digits,
  }).format(dollars);
}

/** Parse a server time, either seconds since 1970 or ISO 8601. Returns null for anything else. */
export function date(time: number | string | null | undefined): Date | null {
  if (time === null || time === undefined) return null;
  const found = typeof time === "number" ? new Date(time < 1e11 ? time * 1000 : time) : new Date(time);
  return Number.isNaN(found.getTime()) ? null : found;
}

/** Format a time, with the date unless it is today. */
export const moment = (time: Date) =>
  time.toDateString() === new Date().toDateString()
    ? clock.format(time)
    : `${shortDay.format(time)}, ${clock.format(time)}`;
export const timeOfDay = (time: Date) => clock.format(time);
export const dateOf = (time: Date) => day.format(time);
