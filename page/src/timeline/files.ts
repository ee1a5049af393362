// Parser of parts files: one JSON object per line, as `sidestream --json` prints.
import type { Json, RunRecord } from "../api";

/** Parse a text with a part or a record per line. Throws an Error that names the invalid line. */
export function readLines(text: string): RunRecord[] {
  const records: RunRecord[] = [];
  for (const [index, line] of text.split("\n").entries()) {
    if (!line.trim()) continue;
    let value: Json;
    try {
      value = JSON.parse(line);
    } catch {
      throw new Error(`Line ${index + 1} is not valid JSON.`);
    }
    if (value === null || typeof value !== "object" || Array.isArray(value)) {
      throw new Error(`Line ${index + 1} is not a part.`);
    }
    records.push(asRecord(value, records.length + 1, index + 1));
  }
  return records;
}

function asRecord(value: { [key: string]: Json }, number: number, line: number): RunRecord {
  if (typeof value.type === "string") return { seq: number, time: 0, kind: value.type, parts: [value] };
  // A line of `sidestream logs show --json`.
  const body = value.body;
  if (typeof value.seq === "number" && body !== null && typeof body === "object" && !Array.isArray(body)) {
    const { seq, time, kind } = value as { seq: number; time: number; kind: string };
    const blobs = Array.isArray(value.blobs) ? (value.blobs as string[]) : [];
    return Array.isArray(body?.parts)
      ? { seq, time, kind, blobs, parts: body.parts }
      : { seq, time, kind, blobs, fact: body ?? null };
  }
  throw new Error(`Line ${line} is not a part.`);
}
