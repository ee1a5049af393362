import { useChat } from "@ai-sdk/react";
import { generateId } from "ai";
import { useCallback, useEffect, useMemo, useRef, useState, useSyncExternalStore } from "react";
import { Grants } from "../approval/grants";
import { approvalWords } from "../approval/words";
import { sessionOf } from "../chat/chats";
import { type Draft, NEW } from "../chat/drafts";
import { useFollower } from "../chat/follow";
import type { Session, Settings } from "../chat/session";
import type { PageMessage } from "../chat/types";
import type { Attachment } from "../chat/uploads";
import { pendingApprovals, viewOf } from "../chat/view";
import { useKeys } from "../keys";
import { onConversations } from "../rail/conversations";
import { navigate } from "../router";
import { hasPanel } from "../routes";
import { isThere } from "../tools/places";
import { announce } from "../ui/announcer";
import { Dialog } from "../ui/dialog";
import { Icon } from "../ui/icons";
import { Link } from "../ui/link";
import { words } from "../words";
import { useAnnouncements } from "./announcements";
import { Composer, type Editing } from "./composer";
import { type Inspected, Thread, type ThreadContext } from "./context";
import { Empty } from "./empty";
import { Inspector } from "./inspector";
import { Message } from "./message";
import { useModels } from "./models";
import { useScrollMemory } from "./scroll";
import "./thread.css";

interface Props {
  /** The conversation; null for a new one. */
  id: string | null;
  /** The branch of it. */
  leaf: number | null;
  onMenu: () => void;
}

const RENDER_MS = 30;
const MOST_TITLE = 200;

export function ThreadPage({ id, leaf, onMenu }: Props) {
  const fresh = useRef(generateId());
  if (id === null && sessionOf(fresh.current).state.phase !== "new") fresh.current = generateId();
  const session = sessionOf(id ?? fresh.current);
  return <ThreadView key={session.id} session={session} isNew={id === null} leaf={leaf} onMenu={onMenu} />;
}

interface ViewProps {
  session: Session;
  isNew: boolean;
  leaf: number | null;
  onMenu: () => void;
}

function ThreadView({ session, isNew, leaf, onMenu }: ViewProps) {
  const state = useSyncExternalStore(session.subscribe, session.snapshot);
  const { messages, status } = useChat({ chat: session.chat, throttle: RENDER_MS });
  const isRunning = status === "submitted" || status === "streaming";
  const [inspected, inspect] = useState<Inspected | null>(null);
  const [editing, setEditing] = useState<Editing | null>(null);
  const [isHelp, openHelp] = useState(false);
  const view = useRef<HTMLDivElement>(null);
  const content = useRef<HTMLDivElement>(null);
  const follower = useFollower(view, content);
  const waiting = useMemo(() => pendingApprovals(messages), [messages]);
  const models = useModels();
  useScrollMemory(session.id, view, follower, messages.length > 0);
  useAnnouncements(messages, isRunning);

  useEffect(() => {
    if (isNew) return;
    if (session.state.phase === "new" && !session.isRunning) void session.load(leaf);
    else if (leaf !== null && leaf !== session.state.leaf) void session.load(leaf);
  }, [session, isNew, leaf]);

  useEffect(() => {
    // Another window may have written meanwhile.
    const onVisible = () => {
      if (document.visibilityState === "visible" && !session.isRunning && session.state.phase === "open") {
        void session.refresh();
      }
    };
    document.addEventListener("visibilitychange", onVisible);
    const leave = onConversations((list) => session.listed(list));
    return () => {
      document.removeEventListener("visibilitychange", onVisible);
      leave();
    };
  }, [session]);

  // The server names a conversation by its first question, and says so when the answer ends.
  const first = messages.find((message) => message.role === "user");
  const title = state.title || (first && textOf(first).split("\n")[0]!.slice(0, MOST_TITLE)) || "";
  useEffect(() => {
    document.title = title ? `${title} · ${words.app}` : words.app;
  }, [title]);

  const edit = useCallback(
    (messageId: string) => {
      const found = session.chat.messages;
      const at = found.findIndex((message) => message.id === messageId);
      const question = found.slice(0, at + 1).findLast((message) => message.role === "user");
      if (question) setEditing({ id: question.id, text: textOf(question), files: filesOf(question) });
    },
    [session],
  );

  const onSettings = useCallback(
    (settings: Settings) => {
      session.settings = settings;
    },
    [session],
  );

  const context: ThreadContext = useMemo(
    () => ({ session, isFollowing: follower.isFollowing, inspect, edit }),
    [session, follower.isFollowing, edit],
  );

  const send = async (text: string, files: Attachment[], settings: Omit<Draft, "text">): Promise<boolean> => {
    const target = editing?.id;
    setEditing(null);
    session.onOpen = () => {
      if (isNew || leaf !== null) navigate(`/c/${encodeURIComponent(session.id)}`, { replace: isNew });
    };
    const taken = session.send(text, files, settings, target);
    requestAnimationFrame(follower.toEnd);
    return taken;
  };

  /** Sends an example to the model that is chosen, with the tool of the example if that model has it. */
  const pick = (text: string, tool: string | null) => {
    const { settings } = session;
    const has = !settings.model || isThere(models.find((model) => model.name === settings.model)?.tools[tool ?? ""]);
    void send(text, [], tool && has ? { ...settings, tools: [tool] } : settings);
  };

  const editLast = () => {
    const last = messages.findLast((message) => message.role === "user");
    if (last) edit(last.id);
  };

  const review = useCallback(() => {
    const card = content.current?.querySelector<HTMLElement>("[data-approval]");
    card?.scrollIntoView({ block: "center" });
    card?.focus({ preventScroll: true });
  }, []);

  // A call that begins to wait takes the focus from an empty composer, and from nothing else.
  const hasWaiting = waiting.length > 0;
  useEffect(() => {
    const field = document.activeElement;
    if (hasWaiting && field instanceof HTMLTextAreaElement && field.value === "") review();
  }, [hasWaiting, review]);

  useKeys(
    useMemo(
      () => ({
        "/": () => search(onMenu),
        n: () => navigate("/"),
        "g t": () => [...document.querySelectorAll<HTMLElement>('[data-key="timeline"]')].at(-1)?.click(),
        a: review,
        ".": () => inspect((open) => (open ? null : lastSources(session.chat.messages))),
        End: follower.toEnd,
        "?": () => openHelp(true),
        o: () => {
          const cards = content.current?.querySelectorAll(".card") ?? [];
          const card = document.activeElement?.closest(".card") ?? [...cards].at(-1);
          card?.querySelector<HTMLElement>("button.card-head")?.click();
        },
        "Alt+ArrowUp": () => step(content.current, -1),
        "Alt+ArrowDown": () => step(content.current, 1),
      }),
      [review, follower.toEnd, onMenu, session],
    ),
  );

  const isEmpty = messages.length === 0 && (state.phase === "new" || state.phase === "open");
  const last = messages.at(-1);
  return (
    <Thread value={context}>
      <div className={`thread ${inspected ? "with-inspector" : ""}`}>
        <div className="thread-column">
          <header className="thread-head">
            <button type="button" className="button quiet icon narrow-only" aria-label={words.menu} onClick={onMenu}>
              <Icon name="menu" />
            </button>
            <h1 dir="auto">{title || (isNew ? words.newConversation : words.untitled)}</h1>
            <button
              type="button"
              className="button quiet icon"
              title={words.keys}
              aria-label={words.keys}
              onClick={() => openHelp(true)}
            >
              <Icon name="keyboard" />
            </button>
            <LastRun messages={messages} />
          </header>
          <div ref={view} className="thread-view">
            <div ref={content} className="thread-content" role="log" aria-live="off" aria-label={words.conversation}>
              {state.phase === "loading" && <p className="notice muted">{words.loading}</p>}
              {state.phase === "missing" && <p className="notice">{words.noChat}</p>}
              {state.phase === "failed" && (
                <div className="notice" role="alert">
                  <p dir="auto">{state.refusal}</p>
                  <button type="button" className="button" onClick={() => void session.load(leaf)}>
                    {words.retry}
                  </button>
                </div>
              )}
              {isEmpty && <Empty onPick={pick} />}
              {messages.map((message, index) => (
                <Message
                  key={message.id}
                  message={message}
                  index={index}
                  isLive={isRunning && message === last && message.role === "assistant"}
                  isLast={index === messages.length - 1}
                  chatId={session.id}
                  leaf={state.leaf}
                  leaves={state.leaves}
                />
              ))}
              {isRunning && last?.role === "user" && <span className="dot" />}
              {state.steering.map((one) => (
                <div key={one.id} className="steer">
                  <p className="bubble said" dir="auto">
                    {one.text}
                  </p>
                  <p className="meta">
                    {words.steering[one.state]}{" "}
                    {one.state === "missed" && (
                      <button
                        type="button"
                        className="link"
                        onClick={() => {
                          session.dropSteering(one.id);
                          void session.send(one.text, []);
                        }}
                      >
                        {words.sendAsMessage}
                      </button>
                    )}
                  </p>
                </div>
              ))}
              {state.queue !== null && (
                <div className="steer">
                  <p className="bubble said" dir="auto">
                    {state.queue}
                  </p>
                  <p className="meta">
                    {words.queued}{" "}
                    <button type="button" className="link" onClick={() => session.dropQueue()}>
                      {words.cancel}
                    </button>
                  </p>
                </div>
              )}
            </div>
          </div>
          <div className="thread-foot">
            {/* Calls that wait have a bar of their own, and the pill would lie on their buttons. */}
            {follower.hasNew && waiting.length === 0 && (
              <button type="button" className="button pill" onClick={follower.toEnd}>
                <Icon name="down" /> {words.newBelow}
              </button>
            )}
            {state.isOffline && (
              <p className="bar" role="status">
                {words.offline}
              </p>
            )}
            {waiting.length > 0 && (
              <div className="waiting-bar">
                <span>{approvalWords.waiting(waiting.length)}</span>
                <button type="button" className="button" onClick={review}>
                  {approvalWords.review}
                </button>
                {waiting.length > 1 && (
                  <button type="button" className="button" onClick={() => denyAll(session, messages)}>
                    {approvalWords.denyAll}
                  </button>
                )}
              </div>
            )}
            <Grants grants={state.grants} onWithdraw={(grant) => void session.withdraw(grant)} />
            {state.refusal && state.phase !== "failed" && state.phase !== "missing" && (
              <p className="bar refusal" role="alert" dir="auto">
                {state.refusal}
                <button
                  type="button"
                  className="button quiet icon"
                  aria-label={words.close}
                  onClick={() => session.clearRefusal()}
                >
                  <Icon name="close" />
                </button>
              </p>
            )}
            {state.phase !== "missing" && (
              <Composer
                draftKey={isNew ? NEW : session.id}
                isRunning={isRunning}
                isStopping={state.isStopping}
                model={state.model}
                editing={editing}
                onCancelEdit={() => setEditing(null)}
                onSend={send}
                onSteer={(text) => session.steer(text)}
                onQueue={(text) => session.enqueue(text)}
                onStop={() => void session.stop()}
                onEditLast={editLast}
                onSettings={onSettings}
              />
            )}
          </div>
        </div>
        {inspected && <Inspector what={inspected} messages={messages} onClose={() => inspect(null)} />}
      </div>
      {isHelp && (
        <Dialog title={words.keys} onClose={() => openHelp(false)}>
          <dl className="key-map">
            {words.keyMap.map(([key, what]) => (
              <div key={key}>
                <dt>
                  <kbd>{key}</kbd>
                </dt>
                <dd>{what}</dd>
              </div>
            ))}
          </dl>
        </Dialog>
      )}
    </Thread>
  );
}

function LastRun({ messages }: { messages: PageMessage[] }) {
  if (!hasPanel("timeline")) return null;
  const run = messages
    .flatMap(({ parts }) => parts.flatMap((part) => (part.type === "data-run" ? [part.data.run] : [])))
    .at(-1);
  if (!run) return null;
  return (
    <Link to={`/r/${encodeURIComponent(run)}`} className="button quiet" data-key="timeline" aria-label={words.timeline}>
      <Icon name="bars" /> <span className="wide-only">{words.timeline}</span>
    </Link>
  );
}

/** Goes to the search of conversations, which a narrow window keeps behind its menu. */
function search(onMenu: () => void): void {
  const field = document.querySelector<HTMLElement>('[data-key="search"]');
  if (field?.checkVisibility()) field.focus();
  else {
    onMenu();
    requestAnimationFrame(() => document.querySelector<HTMLElement>("dialog .rail-search")?.focus());
  }
}

/** The sources of the last answer that has any. */
function lastSources(messages: PageMessage[]): Inspected | null {
  const found = messages.findLast((message) => message.role === "assistant" && viewOf(message).sources.length > 0);
  return found ? { kind: "sources", messageId: found.id, number: null } : null;
}

function filesOf(message: PageMessage): Attachment[] {
  return message.parts.flatMap((part) =>
    part.type === "file" ? [{ url: part.url, name: part.filename ?? "", mediaType: part.mediaType, bytes: null }] : [],
  );
}

function textOf(message: PageMessage): string {
  return message.parts.flatMap((part) => (part.type === "text" ? [part.text] : [])).join("\n\n");
}

/** Denies every call that waits; each decision names the arguments that were shown. */
function denyAll(session: Session, messages: PageMessage[]): void {
  for (const { approval, digest = "" } of pendingApprovals(messages)) {
    void session.decide({ approvalId: approval, approved: false, digest });
  }
}

/** Moves the focus to the message before or after the focused one. */
function step(content: HTMLElement | null, by: number): void {
  const found = [...(content?.querySelectorAll<HTMLElement>(".message") ?? [])];
  const at = found.findIndex((message) => message.contains(document.activeElement));
  const next = found[at === -1 ? (by < 0 ? found.length - 1 : 0) : at + by];
  next?.focus();
  if (next) announce(next.querySelector("h2")?.textContent ?? "", "stage");
}
