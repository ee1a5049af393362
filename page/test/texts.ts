// Fifty texts like those of models, with every pair of neighbouring block types.
const BLOCKS = [
  "# A heading with *emphasis*",
  "Plain words, **bold ones**, `code` and a [link](https://example.org/a?b=c).",
  "- one\n- two\n  - nested **deep**\n  - again\n\n- loose",
  "1. first\n2. second\n\n   with a paragraph\n3. third",
  "> quoted\n> twice\n\nand after it",
  "```python\nfor i in range(3):\n    print(i)  # *not emphasis*\n```",
  "| a | b |\n|---|--:|\n| 1 | 2 |\n| `x` | **y** |",
  "Setext heading\n===",
  "---",
  "- [ ] open\n- [x] done",
  "<div onclick=x>raw</div>\n\nafter raw",
  "A line with two spaces  \nbreaks. ~~gone~~ https://auto.example/link",
  "    indented code\n    more of it",
  "~~~\nfence of tildes ``` inside\n~~~",
  "Before it\n$$\n- a\n# b\n= c\n$$\nand $x^2$ for $5 or $10",
  "\\[\n\\frac{a}{b}\n---\nc\n\\]",
];

export const TEXTS: string[] = Array.from({ length: 50 }, (_, index) => {
  const size = 2 + (index % 4);
  return Array.from(
    { length: size },
    (_, place) => BLOCKS[(index * 5 + place * (1 + (index % 3))) % BLOCKS.length],
  ).join(index % 2 ? "\n\n" : "\n");
});
