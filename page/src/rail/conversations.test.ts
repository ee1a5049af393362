import { expect, test } from "vitest";
import type { Conversation } from "../api";
import { isMissing, withFurther } from "./conversations";

const row = (id: string, updated: number): Conversation => ({
  id,
  title: id,
  model: null,
  created: 0,
  updated,
  status: null,
});
const list = (search: string, next: string | null, ...conversations: Conversation[]) => ({
  search,
  next,
  conversations,
  isLoaded: true,
});

test("what further pages brought stays when the first page is read again", () => {
  const old = list("", "end", row("c", 9), row("b", 8), row("a", 7));
  // A conversation that changed moves up, and a new one stands before it.
  const found = withFurther(list("", "b", row("d", 11), row("a", 10), row("c", 9)), old);
  expect(found.conversations.map(({ id }) => id)).toEqual(["d", "a", "c", "b"]);
  expect(found.next).toBe("end");
});

test("a list of another search, and one that is whole, replace what was there", () => {
  const old = list("", "end", row("c", 9), row("b", 8));
  for (const first of [list("x", "c", row("c", 9)), list("", null, row("c", 9))]) {
    expect(withFurther(first, old)).toBe(first);
  }
});

test("a conversation is missing where a list would have it, not in a search or on a later page", () => {
  const rows = [row("c", 9), row("b", 8)];
  expect(isMissing(list("", null, ...rows), "a", 7)).toBe(true);
  expect(isMissing(list("", "b", ...rows), "a", 10)).toBe(true);
  expect(isMissing(list("", "b", ...rows), "a", 7)).toBe(false);
  expect(isMissing(list("x", null, ...rows), "a", 10)).toBe(false);
  expect(isMissing(list("", null, ...rows), "b", 8)).toBe(false);
});
