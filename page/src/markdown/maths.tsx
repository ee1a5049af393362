import { createElement, memo, type ReactNode, useEffect, useMemo, useState } from "react";

/** An element of MathML as data, or a string. */
export type MathsNode = string | { name: string; props: Record<string, unknown>; children: MathsNode[] };

type Parse = (tex: string, isDisplay: boolean) => MathsNode | null;
let loading: Promise<void> | null = null;
let parse: Parse | null = null;

function load(): Promise<void> {
  loading ??= import("./tex").then((module) => {
    parse = module.parse;
  });
  // A lost connection must not keep later formulas from loading.
  loading.catch(() => {
    loading = null;
  });
  return loading;
}

interface Props {
  tex: string;
  /** Source with its delimiters, shown while loading and for invalid TeX. */
  source: string;
  isDisplay: boolean;
}

/** A formula as MathML. */
export const Maths = memo(function Maths({ tex, source, isDisplay }: Props) {
  const [isReady, setReady] = useState(parse !== null);
  useEffect(() => {
    if (isReady) return;
    let isMounted = true;
    load().then(
      () => isMounted && setReady(true),
      () => undefined, // Show the source.
    );
    return () => {
      isMounted = false;
    };
  }, [isReady]);
  const node = useMemo(() => (isReady && parse ? parse(tex, isDisplay) : null), [tex, isDisplay, isReady]);
  const shown = node === null ? <code>{source.trim()}</code> : element(node, 0);
  return (
    <span className={isDisplay ? "maths display" : "maths"} dir="ltr" tabIndex={isDisplay ? 0 : undefined}>
      {shown}
    </span>
  );
});

function element(node: MathsNode, key: number): ReactNode {
  if (typeof node === "string") return node;
  return createElement(node.name, { ...node.props, key }, ...node.children.map(element));
}
