// Syntax highlighting, loaded when the first complete block of a known language is shown.
import { useEffect, useState } from "react";

const MAX_LINES = 2000;
const NAMES: Record<string, string> = {
  bash: "bash",
  sh: "bash",
  shell: "bash",
  zsh: "bash",
  console: "bash",
  c: "c",
  h: "c",
  cpp: "cpp",
  "c++": "cpp",
  cc: "cpp",
  css: "css",
  diff: "diff",
  patch: "diff",
  go: "go",
  java: "java",
  javascript: "javascript",
  js: "javascript",
  jsx: "javascript",
  mjs: "javascript",
  json: "json",
  jsonl: "json",
  python: "python",
  py: "python",
  python3: "python",
  rust: "rust",
  rs: "rust",
  sql: "sql",
  typescript: "typescript",
  ts: "typescript",
  tsx: "typescript",
  html: "xml",
  xml: "xml",
  svg: "xml",
  yaml: "yaml",
  yml: "yaml",
};

export interface Leaf {
  text: string;
  className: string | null;
}

type Highlight = (language: string, code: string) => Leaf[];
let loading: Promise<Highlight> | null = null;
let loaded: Highlight | null = null;

function load(): Promise<Highlight> {
  loading ??= import("./languages").then(({ highlight }) => {
    loaded = highlight;
    return highlight;
  });
  return loading;
}

/** Highlight code. Null if it is incomplete, too long or in an unknown language, or while loading. */
export function useHighlight(code: string, language: string, isClosed: boolean): Leaf[] | null {
  const name = NAMES[language.trim().toLowerCase().split(/\s/)[0] ?? ""];
  const isWanted = isClosed && name !== undefined && code.split("\n", MAX_LINES + 1).length <= MAX_LINES;
  const [, setReady] = useState(loaded !== null);
  useEffect(() => {
    if (!isWanted || loaded) return;
    let isMounted = true;
    load().then(
      () => isMounted && setReady(true),
      () => undefined, // Show the code without highlighting.
    );
    return () => {
      isMounted = false;
    };
  }, [isWanted]);
  return isWanted && loaded ? loaded(name, code) : null;
}
