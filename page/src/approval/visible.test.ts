import { expect, test } from "vitest";
import { visible } from "./visible";

const shown = (text: string) =>
  visible(text)
    .map((piece) => piece.text)
    .join("");

test.each([
  ["a\u202Eb", "a<U+202E>b"],
  ["a\u200Bb", "a<U+200B>b"],
  ["\u2066x\u2069", "<U+2066>x<U+2069>"],
  ["tag \u{E0041}", "tag <U+E0041>"],
  ["bell \u0007 and \u001b[31m", "bell <U+0007> and <U+001B>[31m"],
  ["no\u00A0break", "no<U+00A0>break"],
  ["\uD800 alone", "<U+D800> alone"],
  ["variation\uFE0F", "variation<U+FE0F>"],
  ["line\nand\ttab stay", "line\nand\ttab stay"],
  ["Zürich, 東京, 😀, עברית", "Zürich, 東京, 😀, עברית"],
])("%j is shown as %j", (text, expected) => {
  expect(shown(text)).toBe(expected);
});
