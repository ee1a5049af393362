// Time scale. Long waits become breaks of a fixed width, unless the scale is linear.
export const LONG_WAIT_MS = 5000;
/** Fraction of the width that a break takes. */
const BREAK = 0.04;
const MOST_BREAKS_SHARE = 0.4;

export interface Break {
  from: number;
  to: number;
  /** Position, from 0 to 1. */
  start: number;
  end: number;
}

export interface Scale {
  /** Return the position of a time, from 0 to 1. */
  at: (time: number) => number;
  breaks: Break[];
}

/** Build the scale from the times of all events, in order. */
export function makeScale(times: number[], isLinear = false): Scale {
  const first = times[0] ?? 0;
  const last = times.at(-1) ?? 0;
  const gaps: [number, number][] = [];
  if (!isLinear) {
    for (let index = 1; index < times.length; index++) {
      if (times[index]! - times[index - 1]! > LONG_WAIT_MS) gaps.push([times[index - 1]!, times[index]!]);
    }
  }
  const waited = gaps.reduce((sum, [from, to]) => sum + to - from, 0);
  const shown = last - first - waited;
  const share = gaps.length ? Math.min(BREAK, MOST_BREAKS_SHARE / gaps.length) : 0;
  // A run that only waits has nothing but breaks.
  const perMs = shown > 0 ? (1 - share * gaps.length) / shown : 0;
  const breaks: Break[] = [];
  let at = 0;
  let from = first;
  for (const [start, end] of gaps) {
    at += (start - from) * perMs;
    breaks.push({ from: start, to: end, start: at, end: at + share });
    at += share;
    from = end;
  }
  return { at: (time) => place(time, first, breaks, perMs), breaks };
}

function place(time: number, first: number, breaks: Break[], perMs: number): number {
  let from = first;
  let at = 0;
  for (const gap of breaks) {
    if (time <= gap.from) break;
    if (time < gap.to) return gap.start + ((time - gap.from) / (gap.to - gap.from)) * (gap.end - gap.start);
    from = gap.to;
    at = gap.end;
  }
  return Math.min(1, Math.max(0, at + (time - from) * perMs));
}
