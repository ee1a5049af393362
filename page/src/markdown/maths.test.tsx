import { cleanup, render, waitFor } from "@testing-library/react";
import type { Token } from "marked";
import { afterEach, expect, test } from "vitest";
import { lex } from "./lex";
import { Markdown } from "./render";
import { parse } from "./tex";

afterEach(cleanup);

/** Return the TeX sources in a text; display ones in brackets. */
function found(text: string): string[] {
  const walk = (tokens: Token[]): string[] =>
    tokens.flatMap((token) => {
      if (token.type === "maths") return [token.isDisplay ? `[${token.text}]` : token.text];
      if (token.type === "list") return walk(token.items);
      return "tokens" in token && token.tokens ? walk(token.tokens) : [];
    });
  return walk(lex(text).tokens);
}

test.each([
  ["It is $x^2$.", ["x^2"]],
  ["the $n$th and $k$s, ($a_1$), $\\alpha$-decay", ["n", "k", "a_1", "\\alpha"]],
  ["\\(a + b\\) and \\[c\\]", ["a + b", "[c]"]],
  ["text\n$$\na\n- b\n= c\n$$\nmore", ["[a\n- b\n= c]"]],
  ["$$ E = mc^2 $$", ["[E = mc^2]"]],
  ["\\[\n\\frac{1}{2}\n\\]\n", ["[\\frac{1}{2}]"]],
  ["- item $i$\n- $$x$$", ["i", "[x]"]],
  ["**bold $a * b * c$**", ["a * b * c"]],
  ["costs $5, or $x$", ["x"]],
  ["$\\$5$", ["\\$5"]],
  ["\\[\na \\\\[2pt] b\n\\]", ["[a \\\\[2pt] b]"]],
  ["$5 \\text{ km}$ and $2\\pi r$", ["5 \\text{ km}", "2\\pi r"]],
])("finds maths in %j", (text, expected) => expect(found(text)).toEqual(expected));

test.each([
  "It costs $5 and $10.",
  "From $5 to 10$ per month",
  "US$5 and A$10, 5$ and 10$",
  "$100-$200, $5/$10, $1,000 (or less)",
  "set $PATH:$HOME, and $HOME too",
  "Cheap: $$ (moderate) or $$ (same), $$$ is more",
  "`$x$` and \\$x\\$",
  "```\n$$\nx\n$$\n```",
  "$$\n\nx\n\n$$",
  "a $ b $ c",
])("leaves %j as text", (text) => expect(found(text)).toEqual([]));

test("shows maths as MathML, with the chips of its citations, and invalid TeX as its source", async () => {
  const text = "Area $\\pi r^2$ and $\\frac{1}$.\n\n$$\\frac{a}{b}$$";
  const { container } = render(
    <Markdown text={text} citations={[{ end: 10, number: 1 }]} chip={(n, key) => <b key={key}>[{n}]</b>} />,
  );
  expect(container.querySelector(".maths code")!.textContent).toBe("$\\pi r^2$");
  await waitFor(() => expect(container.querySelectorAll("math").length).toBe(2));
  expect(container.querySelector("msup")!.textContent).toBe("r2");
  expect(container.querySelector("b")!.textContent).toBe("[1]");
  expect(container.querySelector(".maths code")!.textContent).toBe("$\\frac{1}$");
  expect(container.querySelector(".maths.display mfrac")!.textContent).toBe("ab");
});

test.each([
  "\\href{javascript:alert(1)}{x}",
  "\\url{https://evil.test}",
  "\\includegraphics{https://evil.test/x.png}",
  "\\htmlId{a}{x}",
  "\\htmlStyle{position:fixed}{x}",
  "\\class{skip}{x}",
])("makes no link, image or own attribute of %s", (tex) => {
  expect(JSON.stringify(parse(tex, false)) ?? "").not.toMatch(/href|src|"id"|position|skip|"a"|"img"/);
});

test("bounds what a formula may take", () => {
  const start = performance.now();
  expect(parse("{".repeat(5000), false)).toBeNull();
  expect(parse(`${"\\frac{1}{".repeat(500)}1${"}".repeat(500)}`, false)).toBeNull();
  expect(parse("\\def\\a{\\a\\a}\\a", false)).toBeNull();
  expect(parse("x".repeat(4000), true)).toBeNull();
  expect(JSON.stringify(parse("\\rule{9999em}{9999em}\\kern-9999em x", false))).not.toContain("9999");
  expect(performance.now() - start).toBeLessThan(2000);
});
