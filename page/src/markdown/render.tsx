// Render tokens by a table with one row per token type. A token without a row is shown as source text. Markup
// from the model is never parsed: HTML is text, and images from other hosts are replaced by a description.
import type { Token, Tokens } from "marked";
import {
  createContext,
  Fragment,
  type MouseEvent,
  memo,
  type ReactNode,
  useContext,
  useMemo,
  useRef,
  useState,
} from "react";
import { Dialog } from "../ui/dialog";
import { words } from "../words";
import { type Citation, marked, pieces, unmarked } from "./chips";
import { CodeBlock } from "./code";
import { GrowingLexer } from "./freeze";
import { hostOf, safeLink } from "./links";
import { Maths } from "./maths";
import type { MathsToken } from "./maths_rules";
import { TableFigure } from "./table";
import "./markdown.css";

const MAX_DEPTH = 32;
const CHUNK = 4096;

/** Renders the chip of a source. Provided by the component that has the sources. */
export type ChipRenderer = (number: number, key: string) => ReactNode;
const Chips = createContext<ChipRenderer>(() => null);
const Depth = createContext(0);

interface Props {
  text: string;
  isStreaming?: boolean;
  citations?: Citation[];
  chip?: ChipRenderer;
}

const NONE: Citation[] = [];
const NO_CHIP: ChipRenderer = () => null;

export const Markdown = memo(function Markdown({ text, isStreaming = false, citations = NONE, chip = NO_CHIP }: Props) {
  const lexer = useRef<GrowingLexer>(null);
  lexer.current ??= new GrowingLexer();
  const source = useMemo(() => marked(text, citations), [text, citations]);
  const blocks = useMemo(() => lexer.current!.blocks(source, isStreaming), [source, isStreaming]);
  return (
    <Chips value={chip}>
      <div className="markdown">
        {blocks.map((token, index) => (
          <Block key={index} token={token} isOpen={isStreaming && index === blocks.length - 1} />
        ))}
      </div>
    </Chips>
  );
});

interface BlockProps {
  token: Token;
  /** Whether this is the last block of a growing text. */
  isOpen: boolean;
}

const Block = memo(
  function Block({ token, isOpen }: BlockProps) {
    if (token.type === "code") return <Fence token={token as Tokens.Code} isOpen={isOpen} />;
    return <One token={token} />;
  },
  (before, after) =>
    before.isOpen === after.isOpen &&
    (before.token === after.token ||
      (before.token.raw === after.token.raw &&
        before.token.type === after.token.type &&
        before.token.type !== "plain")),
);

function Fence({ token, isOpen }: { token: Tokens.Code; isOpen: boolean }) {
  const { text, numbers } = unmarked(token.text);
  const isClosed = !isOpen || /\n[ \t]*(```|~~~)[`~]*\s*$/.test(token.raw);
  if (isClosed && token.lang === "math") {
    return (
      <>
        <Maths tex={text} source={text} isDisplay />
        <Numbers numbers={numbers} />
      </>
    );
  }
  return (
    <>
      <CodeBlock code={text} language={unmarked(token.lang ?? "").text} isClosed={isClosed} />
      <Numbers numbers={numbers} />
    </>
  );
}

const FROM_RIGHT =
  /^[\p{Script=Arabic}\p{Script=Hebrew}\p{Script=Syriac}\p{Script=Thaana}\p{Script=Nko}\p{Script=Adlam}]/u;

/** Return the direction of a container. `dir=auto` ignores children that have their own `dir`. */
export function directionOf(text: string): "ltr" | "rtl" {
  const first = /\p{L}/u.exec(text)?.[0] ?? "";
  return FROM_RIGHT.test(first) ? "rtl" : "ltr";
}

type Row = (token: never, depth: number) => ReactNode;

/** Renderers, by token type. */
const TABLE: Record<string, Row> = {
  space: () => null,
  def: () => null,
  plain: (token: Tokens.Generic) => <Plain text={token.raw} />,
  html: (token: Tokens.HTML) =>
    token.block ? <p dir="auto">{<Pieces text={token.raw} />}</p> : <Pieces text={token.raw} />,
  hr: () => <hr />,
  br: () => <br />,
  heading: (token: Tokens.Heading) => {
    // The page uses the first two heading levels itself.
    const Name = `h${Math.min(token.depth + 2, 6)}` as "h3";
    return (
      <Name dir="auto" className={`depth-${token.depth}`}>
        <Many tokens={token.tokens} />
      </Name>
    );
  },
  paragraph: (token: Tokens.Paragraph) => (
    <p dir="auto">
      <Many tokens={token.tokens} />
    </p>
  ),
  blockquote: (token: Tokens.Blockquote) => (
    <blockquote dir={directionOf(token.text)}>
      <Many tokens={token.tokens} />
    </blockquote>
  ),
  list: (token: Tokens.List) => {
    const items = token.items.map((item, index) => <One key={index} token={item} />);
    const direction = directionOf(token.items[0]?.text ?? "");
    if (!token.ordered) return <ul dir={direction}>{items}</ul>;
    return (
      <ol dir={direction} start={token.start === 1 || token.start === "" ? undefined : Number(token.start)}>
        {items}
      </ol>
    );
  },
  list_item: (token: Tokens.ListItem) => (
    <li className={token.task ? "task" : undefined}>
      <Many tokens={token.tokens} />
    </li>
  ),
  checkbox: (token: Tokens.Checkbox) => <input type="checkbox" checked={token.checked} disabled readOnly />,
  table: (token: Tokens.Table) => <Table token={token} />,
  code: (token: Tokens.Code) => <Fence token={token} isOpen={false} />,
  text: (token: Tokens.Text) => (token.tokens ? <Many tokens={token.tokens} /> : <Pieces text={token.text} />),
  escape: (token: Tokens.Escape) => <Pieces text={token.text} />,
  strong: (token: Tokens.Strong) => (
    <strong>
      <Many tokens={token.tokens} />
    </strong>
  ),
  em: (token: Tokens.Em) => (
    <em>
      <Many tokens={token.tokens} />
    </em>
  ),
  del: (token: Tokens.Del) => (
    <del>
      <Many tokens={token.tokens} />
    </del>
  ),
  codespan: (token: Tokens.Codespan) => {
    const { text, numbers } = unmarked(token.text);
    return (
      <>
        <code dir="ltr">{text}</code>
        <Numbers numbers={numbers} />
      </>
    );
  },
  maths: (token: MathsToken) => {
    const source = unmarked(token.raw);
    if (token.isOpen) return <Plain text={token.raw} />;
    return (
      <>
        <Maths tex={unmarked(token.text).text} source={source.text} isDisplay={token.isDisplay} />
        <Numbers numbers={source.numbers} />
      </>
    );
  },
  link: (token: Tokens.Link) => <TextLink token={token} />,
  image: (token: Tokens.Image) => {
    const { text, numbers } = unmarked(token.text);
    return (
      <>
        <span className="unloaded" role="img" aria-label={text || undefined}>
          {/^https?:/i.test(token.href) ? words.remoteImage(hostOf(token.href)) : words.brokenImage}
          {text && `: ${text}`}
        </span>
        <Numbers numbers={numbers} />
      </>
    );
  },
};

function One({ token }: { token: Token }) {
  const depth = useContext(Depth);
  const row = TABLE[token.type] as ((token: Token, depth: number) => ReactNode) | undefined;
  if (!row || depth > MAX_DEPTH) return <Pieces text={token.raw} />;
  return <Depth value={depth + 1}>{row(token, depth)}</Depth>;
}

function Many({ tokens }: { tokens: Token[] | undefined }) {
  return tokens?.map((token, index) => <One key={index} token={token} />);
}

/** Longest cell, in characters, of a column that is not wrapped. Others have a minimum width. */
const SHORT = 20;

function Table({ token }: { token: Tokens.Table }) {
  const isShort = token.header.map((_, place) =>
    [token.header, ...token.rows].every((row) => (row[place]?.text.length ?? 0) <= SHORT),
  );
  return (
    <TableFigure token={token}>
      <table dir="auto">
        <thead>
          <tr>
            {token.header.map((cell, place) => (
              <Cell key={place} cell={cell} name="th" isShort={isShort[place]!} />
            ))}
          </tr>
        </thead>
        <tbody>
          {token.rows.map((row, index) => (
            <tr key={index}>
              {row.map((cell, place) => (
                <Cell key={place} cell={cell} name="td" isShort={isShort[place] ?? false} />
              ))}
            </tr>
          ))}
        </tbody>
      </table>
    </TableFigure>
  );
}

interface CellProps {
  cell: Tokens.TableCell;
  name: "th" | "td";
  isShort: boolean;
}

function Cell({ cell, name: Name, isShort }: CellProps) {
  const classes = [cell.align && `align-${cell.align}`, isShort ? "short" : "wordy"].filter(Boolean).join(" ");
  return (
    <Name className={classes}>
      <Many tokens={cell.tokens} />
    </Name>
  );
}

function Pieces({ text }: { text: string }) {
  const chip = useContext(Chips);
  return pieces(text).map((piece, index) => (
    <Fragment key={index}>{typeof piece === "string" ? piece : chip(piece, String(index))}</Fragment>
  ));
}

function Numbers({ numbers }: { numbers: number[] }) {
  const chip = useContext(Chips);
  return numbers.map((number, index) => <Fragment key={index}>{chip(number, String(index))}</Fragment>);
}

/** Plain text. Long lines are split, because browsers lay out short pieces faster. */
export function Plain({ text }: { text: string }) {
  const parts: string[] = [];
  for (let from = 0; from < text.length; from += CHUNK) parts.push(text.slice(from, from + CHUNK));
  return (
    <p dir="auto" className="plain">
      {parts.map((part, index) => (
        <span key={index}>
          <Pieces text={part} />
        </span>
      ))}
    </p>
  );
}

function TextLink({ token }: { token: Tokens.Link }) {
  const [isAsking, ask] = useState(false);
  const href = unmarked(token.href);
  const inside = <Many tokens={token.tokens} />;
  const link = safeLink(href.text, unmarked(token.text).text);
  const end = <Numbers numbers={href.numbers} />;
  if (!link) {
    return (
      <>
        {inside}
        {end}
      </>
    );
  }
  // The middle button opens links too.
  const onClick = (event: MouseEvent) => {
    if (!link.isLong || event.button === 2) return;
    event.preventDefault();
    ask(true);
  };
  return (
    <>
      <a
        href={link.href}
        target="_blank"
        rel="noopener noreferrer"
        title={link.href}
        onClick={onClick}
        onAuxClick={onClick}
      >
        {inside}
      </a>
      {link.warning && <span className="real-host"> {words.realHost(link.warning)}</span>}
      {end}
      {isAsking && (
        <Dialog title={link.host} onClose={() => ask(false)}>
          <p>{words.longLink}</p>
          <p className="address" dir="ltr">
            {link.href}
          </p>
          <div className="dialog-actions">
            <button type="button" className="button" onClick={() => ask(false)}>
              {words.cancel}
            </button>
            <a className="button" href={link.href} target="_blank" rel="noopener noreferrer" onClick={() => ask(false)}>
              {words.openLink}
            </a>
          </div>
        </Dialog>
      )}
    </>
  );
}
