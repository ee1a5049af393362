import { expect, test } from "vitest";
import { lex } from "./lex";

test.each([
  ["two thousand nested quotes", `${">".repeat(2000)} deep`],
  ["a hundred levels of lists", Array.from({ length: 100 }, (_, depth) => `${"  ".repeat(depth)}- x`).join("\n")],
  ["sixty kilobytes of emphasis", "_a_".repeat(20_000)],
  ["unclosed brackets", "[".repeat(50_000)],
  ["unclosed emphasis and links", "*[a](".repeat(5000)],
  ["unclosed display maths", "\\[\n".repeat(20_000)],
  ["unclosed display maths in dollars", "$$x\n".repeat(20_000)],
  ["unclosed maths", "\\(x ".repeat(20_000)],
  ["paragraphs of unclosed maths", `${"\\(\\[".repeat(1900)}\n\n`.repeat(12)],
  ["paragraphs cut by display maths", "a\n$$x$$\n".repeat(8000)],
  ["single dollars", "$x ".repeat(20_000)],
  ["fifty thousand dollars", "$".repeat(50_000)],
])("lexes %s within a second, without losing characters", (_, text) => {
  const start = performance.now();
  const { tokens } = lex(text);
  expect(performance.now() - start).toBeLessThan(1000);
  expect(
    tokens
      .map((token) => token.raw)
      .join("")
      .replace(/\s/g, ""),
  ).toBe(text.replace(/\s/g, ""));
});
