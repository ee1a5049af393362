import { expect, it } from "vitest";
import { diffOf } from "./diff";

const shown = (before: string, after: string) =>
  diffOf(before, after).map(({ kind, text }) => `${{ same: " ", old: "-", new: "+" }[kind]}${text}`);

it("keeps equal lines and marks removed and added ones", () => {
  expect(shown("a\nb\nc", "a\nx\nc\nd")).toEqual([" a", "-b", "+x", " c", "+d"]);
  expect(shown("", "a")).toEqual(["-", "+a"]);
  expect(shown("same", "same")).toEqual([" same"]);
});

it.each([
  ["a\nb\na\nc", "b\na\nb"],
  ["one", "two\nthree"],
  [Array.from({ length: 600 }, (_, line) => line).join("\n"), "short"],
])("contains all lines of both texts, in order", (before, after) => {
  const found = diffOf(before, after);
  const of = (kind: string) => found.filter((line) => line.kind !== kind).map((line) => line.text);
  expect(of("new").join("\n")).toBe(before);
  expect(of("old").join("\n")).toBe(after);
});
