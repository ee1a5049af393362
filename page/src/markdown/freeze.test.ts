import { expect, test } from "vitest";
import { TEXTS } from "../../test/texts";
import { GrowingLexer } from "./freeze";
import { lex } from "./lex";

test("matches a full lex on every prefix of fifty texts", () => {
  let prefixes = 0;
  for (const text of TEXTS) {
    const growing = new GrowingLexer();
    for (let end = 1; end <= text.length; end += 1) {
      const prefix = text.slice(0, end);
      expect(growing.blocks(prefix, false), JSON.stringify(prefix)).toEqual(lex(prefix).tokens);
      prefixes += 1;
    }
  }
  expect(prefixes).toBeGreaterThan(5000);
});

test("keeps the identity of frozen blocks, and lexes again if the start changes", () => {
  const growing = new GrowingLexer();
  const before = growing.blocks("one\n\ntwo\n\nthree\n\nfour", true);
  const after = growing.blocks("one\n\ntwo\n\nthree\n\nfour five", true);
  expect(after[0]).toBe(before[0]);
  expect(after.at(-1)!.raw).toBe("four five");
  expect(growing.blocks("# other", true).map((token) => token.type)).toEqual(["heading"]);
});

test("applies a late definition to earlier links", () => {
  const growing = new GrowingLexer();
  const text = "see [this][a]\n\ntwo\n\nthree\n\nfour";
  growing.blocks(text, true);
  const full = `${text}\n\n[a]: https://example.org\n`;
  expect(growing.blocks(full, false)).toEqual(lex(full).tokens);
});

test("closes open markers in the last block while streaming", () => {
  const [block] = new GrowingLexer().blocks("so **bold", true);
  expect(JSON.stringify(block)).toContain('"strong"');
  expect(JSON.stringify(new GrowingLexer().blocks("so **bold", false))).not.toContain('"strong"');
});

test("bounds the formulas of a text that arrives in pieces as those of a whole one", () => {
  const text = Array.from({ length: 12 }, (_, at) => `$x_{${at}}$ `.repeat(200)).join("\n\n");
  const growing = new GrowingLexer();
  for (let end = 500; end < text.length; end += 500) growing.blocks(text.slice(0, end), true);
  expect(growing.blocks(text, false)).toEqual(lex(text).tokens);
  expect(JSON.stringify(lex(text).tokens).match(/"type":"maths"/g)).toHaveLength(1000);
});
