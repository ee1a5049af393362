import { expect, test } from "vitest";
import type { Conversation } from "../api";
import { byAge, isMissing, withFurther } from "./conversations";

const row = (id: string, updated: number): Conversation => ({
  id,
  title: id,
  model: null,
  created: 0,
  updated,
  status: null,
  pinned: false,
});
const list = (search: string, next: string | null, ...conversations: Conversation[]) => ({
  search,
  next,
  conversations,
  isLoaded: true,
});

test("keeps later pages when the first page is reloaded", () => {
  const old = list("", "end", row("c", 9), row("b", 8), row("a", 7));
  // A changed conversation moves up, below a new one.
  const found = withFurther(list("", "b", row("d", 11), row("a", 10), row("c", 9)), old);
  expect(found.conversations.map(({ id }) => id)).toEqual(["d", "a", "c", "b"]);
  expect(found.next).toBe("end");
});

test("replaces the list after a new search or a complete result", () => {
  const old = list("", "end", row("c", 9), row("b", 8));
  for (const first of [list("x", "c", row("c", 9)), list("", null, row("c", 9))]) {
    expect(withFurther(first, old)).toBe(first);
  }
});

test("reports a missing conversation, but not in a search or for a later page", () => {
  const rows = [row("c", 9), row("b", 8)];
  expect(isMissing(list("", null, ...rows), "a", 7)).toBe(true);
  expect(isMissing(list("", "b", ...rows), "a", 10)).toBe(true);
  expect(isMissing(list("", "b", ...rows), "a", 7)).toBe(false);
  expect(isMissing(list("x", null, ...rows), "a", 10)).toBe(false);
  expect(isMissing(list("", null, ...rows), "b", 8)).toBe(false);
});

test("keeps later pages below pinned conversations, which are grouped first", () => {
  const pinned = { ...row("p", 1), pinned: true };
  const old = list("", "end", pinned, row("c", 9), row("b", 8), row("a", 7));
  const found = withFurther(list("", "b", pinned, row("c", 9)), old);
  expect(found.conversations.map(({ id }) => id)).toEqual(["p", "c", "b", "a"]);
  expect(isMissing(list("", "b", pinned), "a", 7)).toBe(true);
  const groups = byAge([pinned, row("a", 0)]);
  expect(groups.map(([age, rows]) => [age, rows.map(({ id }) => id)])).toEqual([
    ["pinned", ["p"]],
    ["older", ["a"]],
  ]);
});
