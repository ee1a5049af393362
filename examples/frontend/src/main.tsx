// A front end for a Sidestream server on another origin: text, files, tools and approvals.
import { useChat } from "@ai-sdk/react";
import {
  DefaultChatTransport,
  getToolName,
  isToolUIPart,
  lastAssistantMessageIsCompleteWithApprovalResponses,
  type UIMessage,
} from "ai";
import { type FormEvent, StrictMode, useEffect, useRef, useState } from "react";
import { createRoot } from "react-dom/client";
import type { ApprovalData, DataParts, RunData, ToolData } from "./sidestream";

type Message = UIMessage<unknown, DataParts>;
type Part = Message["parts"][number];
type Decide = (approval: string, approved: boolean) => void;

// Open the page with `#server=…&token=…`. Your own front end gets both from your app.
const given = new URLSearchParams(location.hash.slice(1));
const server = given.get("server") ?? "http://127.0.0.1:8787";
const headers = { authorization: `Bearer ${given.get("token") ?? ""}` };
const isNew = !sessionStorage.chat;
const chatId = (sessionStorage.chat ??= crypto.randomUUID()) as string;

const transport = new DefaultChatTransport<Message>({ api: `${server}/api/chat`, headers });

function App() {
  const [earlier, setEarlier] = useState<Message[]>();
  const [problem, setProblem] = useState("");
  useEffect(() => {
    read().then(setEarlier, (error: Error) => setProblem(error.message));
  }, []);
  if (problem) return <p role="alert">{problem}</p>;
  return earlier ? <Chat earlier={earlier} /> : <p>Loading…</p>;
}

/** The messages that the server has of this chat. */
async function read(): Promise<Message[]> {
  if (isNew) return [];
  const response = await fetch(`${server}/api/chat/${chatId}`, { headers });
  if (response.status === 404) return []; // Nothing was sent yet.
  const body = await response.json();
  if (!response.ok) throw new Error(body.error.message);
  return body.messages;
}

function Chat({ earlier }: { earlier: Message[] }) {
  const { messages, sendMessage, addToolApprovalResponse, status, error } = useChat<Message>({
    id: chatId,
    messages: earlier,
    transport,
    resume: true, // Follow an answer that is still being written.
    sendAutomaticallyWhen: lastAssistantMessageIsCompleteWithApprovalResponses,
  });
  const isBusy = status === "submitted" || status === "streaming";
  return (
    <main>
      {messages.map((message) => (
        <MessageView
          key={message.id}
          message={message}
          decide={(id, approved) => void addToolApprovalResponse({ id, approved })}
        />
      ))}
      {error && <p role="alert">{error.message}</p>}
      <Composer isBusy={isBusy} send={(text, files) => void sendMessage({ text, files })} />
      {isBusy && (
        <button type="button" onClick={() => void fetch(`${server}/api/chat/${chatId}/stop`, { method: "POST", headers })}>
          Stop
        </button>
      )}
    </main>
  );
}

function MessageView({ message, decide }: { message: Message; decide: Decide }) {
  // The server adds the state of calls, approvals and the run as data parts.
  const tools = new Map<string, ToolData>();
  const approvals = new Map<string, ApprovalData>();
  let run: RunData | undefined;
  for (const part of message.parts) {
    if (part.type === "data-tool") tools.set(part.data.call, part.data);
    if (part.type === "data-approval") approvals.set(part.data.approval, part.data);
    if (part.type === "data-run") run = part.data;
  }
  return (
    <article data-role={message.role}>
      {message.parts.map((part, index) => (
        <PartView key={index} part={part} tools={tools} approvals={approvals} decide={decide} />
      ))}
      {run?.status === "complete" && (
        <small>
          {run.model}
          {run.cost !== undefined && ` · $${run.cost.toFixed(4)}`}
        </small>
      )}
    </article>
  );
}

function PartView(props: {
  part: Part;
  tools: Map<string, ToolData>;
  approvals: Map<string, ApprovalData>;
  decide: Decide;
}) {
  const { part, tools, approvals, decide } = props;
  if (part.type === "text") return <p>{part.text}</p>;
  if (part.type === "file" && part.mediaType.startsWith("image/"))
    return <img src={part.url} alt={part.filename ?? "Image"} />;
  if (part.type === "file") return <a href={part.url}>{part.filename ?? part.mediaType}</a>;
  if (part.type === "source-url") return <a href={part.url}>{part.title ?? part.url}</a>;
  if (part.type === "data-notice") return <small>{part.data.words}</small>;
  if (!isToolUIPart(part)) return null;
  const label = tools.get(part.toolCallId)?.label ?? getToolName(part);
  if (part.state !== "approval-requested") return <small>{label}</small>;
  const { id } = part.approval;
  return (
    <fieldset>
      <legend>{label}</legend>
      <pre>{JSON.stringify(part.input, null, 2)}</pre>
      <p>{approvals.get(id)?.origin}</p>
      <button type="button" onClick={() => decide(id, true)}>
        Allow
      </button>
      <button type="button" onClick={() => decide(id, false)}>
        Deny
      </button>
    </fieldset>
  );
}

function Composer({ isBusy, send }: { isBusy: boolean; send: (text: string, files?: FileList) => void }) {
  const [text, setText] = useState("");
  const picker = useRef<HTMLInputElement>(null);
  function submit(event: FormEvent) {
    event.preventDefault();
    if (isBusy || !text.trim()) return;
    send(text, picker.current?.files ?? undefined);
    setText("");
    if (picker.current) picker.current.value = "";
  }
  return (
    <form onSubmit={submit}>
      <input type="text" aria-label="Message" value={text} onChange={(event) => setText(event.target.value)} />
      <input type="file" aria-label="Files" multiple ref={picker} />
      <button disabled={isBusy}>Send</button>
    </form>
  );
}

createRoot(document.getElementById("root")!).render(
  <StrictMode>
    <App />
  </StrictMode>,
);
