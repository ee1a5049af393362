// TeX to MathML. Loaded with the first formula. The result is data: no markup is made, and only known elements,
// attributes and styles pass.
import temml from "temml";
import type { MathsNode } from "./maths";
import "./tex.css";

const ELEMENTS = new Set(
  "math mrow mi mn mo ms mtext mspace msup msub msubsup mfrac msqrt mroot mover munder munderover mtable mtr mtd mstyle mpadded mphantom mmultiscripts mprescripts menclose none span".split(
    " ",
  ),
);
const ATTRIBUTES = new Set(
  "accent accentunder columnalign columnspan depth display displaystyle fence form height largeop linethickness lspace mathcolor mathbackground mathvariant maxsize minsize movablelimits notation rowspacing rspace scriptlevel separator stretchy symmetric voffset width".split(
    " ",
  ),
);
const STYLES = new Set(
  "color backgroundColor border borderTop borderBottom borderLeft borderRight fontWeight fontStyle padding paddingLeft paddingRight paddingTop paddingBottom textAlign verticalAlign width".split(
    " ",
  ),
);
const LENGTHS = new Set(["width", "height", "depth", "lspace", "rspace", "voffset", "minsize", "maxsize"]);
const CLASS = /^[a-z][a-z0-9-]*$/i;
const MAX_NODES = 3000;
const MAX_DEPTH = 60;
/** Largest size that TeX may ask for, in em. */
const MAX_EM = 40;
const MOST_BACK_EM = 2;
const OPTIONS = { throwOnError: true, trust: false, strict: false, maxSize: [MAX_EM, MAX_EM], maxExpand: 300 };

interface Made {
  type?: string;
  text?: string;
  attributes?: Record<string, unknown>;
  classes?: string[];
  style?: Record<string, unknown>;
  children?: Made[];
}

/** Convert TeX to a tree of MathML. Returns null if it is invalid or too large. */
export function parse(tex: string, isDisplay: boolean): MathsNode | null {
  try {
    const left = { count: MAX_NODES };
    return converted(temml.__renderToMathMLTree(tex, { ...OPTIONS, displayMode: isDisplay } as never), left, 0);
  } catch {
    return null;
  }
}

function converted(node: Made, left: { count: number }, depth: number): MathsNode {
  left.count -= 1;
  if (left.count < 0 || depth > MAX_DEPTH) throw new RangeError("too large");
  if (node.text !== undefined) return node.text;
  const children = (node.children ?? []).map((child) => converted(child, left, depth + 1));
  const name = node.type ?? "span";
  if (!ELEMENTS.has(name)) return { name: "mrow", props: {}, children };
  const props: Record<string, unknown> = {};
  for (const [key, value] of Object.entries(node.attributes ?? {})) {
    const text = String(value);
    if (ATTRIBUTES.has(key)) props[key] = LENGTHS.has(key) ? bounded(text) : text;
  }
  const classes = (node.classes ?? []).filter((one) => CLASS.test(one));
  if (classes.length > 0) props.className = classes.join(" ");
  const style = Object.entries(node.style ?? {}).filter(([key, value]) => STYLES.has(key) && isPlain(String(value)));
  if (style.length > 0) props.style = Object.fromEntries(style);
  return { name, props, children };
}

const isPlain = (value: string) => value.length < 40 && !/url|var|\\|;/i.test(value);

/** Keep a formula from covering the text around it. */
function bounded(length: string): string {
  const size = /^([+-]?\d*\.?\d+)em$/.exec(length);
  return size ? `${Math.min(MAX_EM, Math.max(-MOST_BACK_EM, Number(size[1])))}em` : length;
}
