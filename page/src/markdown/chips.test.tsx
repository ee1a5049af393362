import { cleanup, render } from "@testing-library/react";
import { afterEach, expect, test } from "vitest";
import { marked, pieces, unitsOf } from "./chips";
import { Markdown } from "./render";

afterEach(cleanup);

function shown(text: string, citations: { end: number; number: number }[]): string {
  const { container } = render(
    <Markdown text={text} citations={citations} chip={(n, key) => <b key={key}>[{n}]</b>} />,
  );
  return container.textContent ?? "";
}

test("places a chip at the end of its span in any Markdown", () => {
  const text = "It is **6 min 23 s** long. See `x = 1` too.";
  expect(shown(text, [{ end: text.indexOf(" long"), number: 1 }])).toBe("It is 6 min 23 s[1] long. See x = 1 too.");
  expect(shown(text, [{ end: text.indexOf("* long"), number: 1 }])).toBe("It is 6 min 23 s[1] long. See x = 1 too.");
  expect(shown(text, [{ end: text.indexOf("= 1"), number: 2 }])).toBe("It is 6 min 23 s long. See x = 1[2] too.");
  expect(shown(text, [{ end: 10_000, number: 3 }])).toContain("too.[3]");
});

test("places a chip after the link if its span ends inside the URL", () => {
  const text = "See [NASA](https://nasa.gov/eclipse).";
  expect(shown(text, [{ end: text.indexOf(")"), number: 1 }])).toBe("See NASA[1].");
});

test("keeps the order of chips at one position without repeats", () => {
  expect(
    shown("ab", [
      { end: 1, number: 2 },
      { end: 1, number: 1 },
      { end: 1, number: 2 },
    ]),
  ).toBe("a[2][1]b");
});

test("replaces a link with its chip", () => {
  const text = "It is so. ([a](https://a.example)) And so. ([b](https://b.example))";
  const first = { from: text.indexOf("([a"), end: text.indexOf(" And"), number: 1 };
  const second = { from: text.indexOf("([b"), end: text.length, number: 2 };
  expect(shown(text, [first, second, { ...second, number: 3 }])).toBe("It is so. [1] And so. [2][3]");
});

test("ignores private-use characters in model output", () => {
  expect(pieces(marked("a\uE0001\uE001b", []))).toEqual(["a\uFFFD1\uFFFDb"]);
});

test("counts positions in characters, not UTF-16 units", () => {
  expect(unitsOf("a😀b", 2)).toBe(3);
  expect(unitsOf("abc", 99)).toBe(3);
});
