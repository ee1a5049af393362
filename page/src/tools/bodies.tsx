import { type ReactNode, useContext, useState, useSyncExternalStore } from "react";
import { Values } from "../approval/arguments";
import { CodeBlock } from "../markdown/code";
import { hostOf, safeLink } from "../markdown/links";
import { Thread } from "../thread/context";
import { words } from "../words";
import { type BodyKind, type Call, commandOf, diffIn, isObject, outputText, pagesIn, titleOf } from "./describe";

const MOST_LINES = 12;
const MOST_CHARACTERS = 4096;

interface Props {
  call: Call;
  kind: BodyKind;
  isOpen: boolean;
  /** Cards of its nested calls. */
  nested?: ReactNode;
}

/** Body of a card. */
export function Body({ call, kind, isOpen, nested }: Props) {
  switch (kind) {
    case "code":
      return (
        <>
          <CodeBody call={call} isOpen={isOpen} />
          {nested}
        </>
      );
    case "search":
      return <SearchBody call={call} />;
    case "shell":
      return <ShellBody call={call} />;
    case "patch":
      return <Output title={words.input} text={diffIn(call.input)} language="diff" />;
    default:
      return <CallBody call={call} nested={nested} />;
  }
}

/** Return whether the card has a body. */
export function hasBody(call: Call, kind: BodyKind): boolean {
  const { data, input, output, error } = call;
  switch (kind) {
    case "search":
      return (
        pagesIn(output).length > 0 ||
        passagesIn(output).length > 0 ||
        (data?.queries?.length ?? 0) > 1 ||
        Boolean(data?.snippet || error)
      );
    case "patch":
      return diffIn(input) !== "";
    case "code":
    case "shell":
      return true;
    default:
      return Object.keys(input).length > 0 || Boolean(error || call.part.input) || outputText(output) !== "";
  }
}

const passagesIn = (output: unknown) =>
  isObject(output) && Array.isArray(output.results) ? output.results.filter(isObject) : [];

function SearchBody({ call }: { call: Call }) {
  const pages = pagesIn(call.output);
  const queries = call.data?.queries ?? [];
  const passages = passagesIn(call.output);
  return (
    <>
      {queries.length > 1 && (
        <ul className="queries">
          {queries.map((query) => (
            <li key={query} dir="auto">
              {query}
            </li>
          ))}
        </ul>
      )}
      {pages.length > 0 && (
        <ul className="pages">
          {pages.map(({ url, title }) => (
            <Page key={url} url={url} title={title} />
          ))}
        </ul>
      )}
      {pages.length === 0 && passages.map((passage, index) => <Passage key={index} passage={passage} />)}
      {pages.length === 0 && passages.length === 0 && call.data?.snippet && <p dir="auto">{call.data.snippet}</p>}
      {call.error && <p dir="auto">{call.error}</p>}
    </>
  );
}

const shortAddress = (url: string) => url.replace(/^https?:\/\/(www\.)?/, "").slice(0, 120);

function Page({ url, title }: { url: string; title: string }) {
  const link = safeLink(url, "");
  return (
    <li>
      {link ? (
        <a href={link.href} target="_blank" rel="noopener noreferrer" dir="auto">
          {title || shortAddress(url)}
        </a>
      ) : (
        <span dir="auto">{title || url}</span>
      )}{" "}
      {title && <span className="meta">{hostOf(url)}</span>}
    </li>
  );
}

function Passage({ passage }: { passage: Record<string, unknown> }) {
  const text = typeof passage.text === "string" ? passage.text : "";
  return (
    <blockquote className="passage">
      <p className="meta">{String(passage.filename ?? passage.file_id ?? "")}</p>
      <p dir="auto">{text.slice(0, 600)}</p>
    </blockquote>
  );
}

/** The code of a call, while it is written and when it is complete. */
function useCode(call: Call): string {
  const { session } = useContext(Thread);
  const written = useSyncExternalStore(session?.subscribeCode ?? never, () => session?.code.get(call.part.toolCallId));
  const input = call.input.code ?? call.input.file_text ?? call.input.new_str;
  const given = typeof input === "string" ? input : "";
  // The code may have grown since the page was opened.
  const isWritten = call.part.state === "input-streaming" && written !== undefined && written.length > given.length;
  return isWritten || !given ? (written ?? "") : given;
}

const never = () => () => undefined;

function CodeBody({ call, isOpen }: { call: Call; isOpen: boolean }) {
  const code = useCode(call);
  const output = outputText(call.output) || call.error;
  // Keep the size of a box that was seen growing, so that the layout does not shift.
  const [wasRunning] = useState(call.state === "running");
  return (
    <>
      {isOpen && code && (
        <div className={wasRunning ? "growing" : undefined}>
          <CodeBlock code={code} language="python" isClosed={call.state !== "running"} />
        </div>
      )}
      <Output text={output} isCutInside />
    </>
  );
}

function ShellBody({ call }: { call: Call }) {
  const output = outputText(call.output) || call.error;
  return (
    <>
      <pre className="command" dir="ltr">
        $ {commandOf(call)}
      </pre>
      <Output text={output} isCutInside />
    </>
  );
}

function CallBody({ call, nested }: { call: Call; nested?: ReactNode }) {
  const hasInput = Object.keys(call.input).length > 0;
  const raw = !hasInput && typeof call.part.input === "string" ? call.part.input : "";
  const output = outputText(call.output);
  return (
    <>
      {hasInput && <Values value={call.input} />}
      {raw && <Output title={words.input} text={raw} />}
      {nested}
      {call.error && !titleOf(call).includes(call.error.trim()) && <p dir="auto">{call.error}</p>}
      {output && (
        <details className="result" open={call.state === "failed"}>
          <summary>{words.output}</summary>
          <Output text={output} />
        </details>
      )}
    </>
  );
}

interface OutputProps {
  text: string;
  title?: string;
  language?: string;
  /** Whether to show the start and the end, and skip the middle. */
  isCutInside?: boolean;
}

/** Text of a tool, cut to twelve lines until the user expands it. */
export function Output({ text, title = words.output, language = "", isCutInside = false }: OutputProps) {
  const { inspect } = useContext(Thread);
  if (!text) return null;
  const lines = text.replace(/\n$/, "").split("\n");
  const isLong = lines.length > MOST_LINES || text.length > MOST_CHARACTERS;
  let shown = text;
  if (isLong) {
    const cut = isCutInside && lines.length > MOST_LINES;
    const kept = cut ? [...lines.slice(0, 4), "…", ...lines.slice(-8)] : lines.slice(0, MOST_LINES);
    shown = kept.join("\n").slice(0, MOST_CHARACTERS);
  }
  return (
    <div className="output" dir="ltr">
      {language ? <CodeBlock code={shown} language={language} /> : <pre dir="auto">{shown}</pre>}
      {isLong && (
        <button type="button" className="link" onClick={() => inspect({ kind: "text", title, text })}>
          {words.showAll(lines.length)}
        </button>
      )}
    </div>
  );
}
