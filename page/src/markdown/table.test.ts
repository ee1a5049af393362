import type { Tokens } from "marked";
import { expect, test } from "vitest";
import { lex } from "./lex";
import { csvOf } from "./table";

test("copies a table as CSV, quoted, without Markdown and without formulas", () => {
  const text =
    '| place | **note** |\n|---|--:|\n| Cádiz, ES | `2` "min" |\n| =1+1 | -5 |\n| [x](https://a.test) | $x^2$ |';
  expect(csvOf(lex(text).tokens[0] as Tokens.Table)).toBe(
    'place,note\r\n"Cádiz, ES","2 ""min"""\r\n\'=1+1,-5\r\nx,x^2',
  );
});
