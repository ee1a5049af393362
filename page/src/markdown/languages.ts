import bash from "highlight.js/lib/languages/bash";
import c from "highlight.js/lib/languages/c";
import cpp from "highlight.js/lib/languages/cpp";
import css from "highlight.js/lib/languages/css";
import diff from "highlight.js/lib/languages/diff";
import go from "highlight.js/lib/languages/go";
import java from "highlight.js/lib/languages/java";
import javascript from "highlight.js/lib/languages/javascript";
import json from "highlight.js/lib/languages/json";
import python from "highlight.js/lib/languages/python";
import rust from "highlight.js/lib/languages/rust";
import sql from "highlight.js/lib/languages/sql";
import typescript from "highlight.js/lib/languages/typescript";
import xml from "highlight.js/lib/languages/xml";
import yaml from "highlight.js/lib/languages/yaml";
import { createLowlight } from "lowlight";
import type { Leaf } from "./highlight";

const lowlight = createLowlight({
  bash,
  c,
  cpp,
  css,
  diff,
  go,
  java,
  javascript,
  json,
  python,
  rust,
  sql,
  typescript,
  xml,
  yaml,
});

type Node = ReturnType<typeof lowlight.highlight>["children"][number];

/** Split code into tokens and their kinds, without generating markup. */
export function highlight(language: string, code: string): Leaf[] {
  const leaves: Leaf[] = [];
  const walk = (nodes: Node[], className: string | null): void => {
    for (const node of nodes) {
      if (node.type === "text") leaves.push({ text: node.value, className });
      else if (node.type === "element") {
        const names = node.properties.className;
        walk(node.children as Node[], Array.isArray(names) ? names.join(" ") : className);
      }
    }
  };
  walk(lowlight.highlight(language, code).children, null);
  return leaves;
}
