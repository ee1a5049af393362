import { useChat } from "@ai-sdk/react";
import { generateId } from "ai";
import { useCallback, useEffect, useMemo, useRef, useState, useSyncExternalStore } from "react";
import { sessionOf } from "../chat/chats";
import { type Draft, NEW } from "../chat/drafts";
import { useFollower } from "../chat/follow";
import type { Session, Settings } from "../chat/session";
import type { Attachment } from "../chat/uploads";
import { pendingApprovals } from "../chat/view";
import { navigate } from "../router";
import { isThere } from "../tools/places";
import { words } from "../words";
import { useAnnouncements } from "./announcements";
import { Composer } from "./composer";
import { type Inspected, Thread, type ThreadContext } from "./context";
import { useEditing } from "./editing";
import { ThreadFoot } from "./foot";
import { KeyHelp, ThreadHead } from "./head";
import { Inspector } from "./inspector";
import { useReview, useThreadKeys } from "./keys";
import { ThreadLog } from "./log";
import { useModels } from "./models";
import { useScrollMemory } from "./scroll";
import { useTitle, useVisit } from "./visit";
import "./thread.css";

interface Props {
  /** Conversation id. Null for a new one. */
  id: string | null;
  /** Branch to show. */
  leaf: number | null;
  onMenu: () => void;
}

const RENDER_MS = 30;

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
  const { editing, edit, editLast, endEditing } = useEditing(session);
  const [isHelp, setHelp] = useState(false);
  const openHelp = useCallback(() => setHelp(true), []);
  const view = useRef<HTMLDivElement>(null);
  const content = useRef<HTMLDivElement>(null);
  const follower = useFollower(view, content);
  const waiting = useMemo(() => pendingApprovals(messages), [messages]);
  useScrollMemory(session.id, view, follower, messages.length > 0);
  useAnnouncements(messages, isRunning);
  useVisit(session, isNew, leaf);
  const title = useTitle(state.title, messages);
  const review = useReview(content, waiting.length > 0);
  useThreadKeys({ session, content, follower, inspect, review, onHelp: openHelp });

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
    endEditing();
    const taken = session.send(text, files, settings, target);
    requestAnimationFrame(follower.toEnd);
    return taken;
  };
  useEffect(() => {
    // The newest branch is the one that a URL without a branch opens, also after a retry of an older one.
    session.onOpen = () => {
      if (isNew || leaf !== null) navigate(`/c/${encodeURIComponent(session.id)}`, { replace: isNew });
    };
    return () => {
      session.onOpen = null;
    };
  }, [session, isNew, leaf]);
  const pick = usePick(session, send);

  return (
    <Thread value={context}>
      <div className={`thread ${inspected ? "with-inspector" : ""}`}>
        <div className="thread-column">
          <ThreadHead
            title={title || (isNew ? words.newConversation : words.untitled)}
            messages={messages}
            onMenu={onMenu}
            onHelp={openHelp}
          />
          <div ref={view} className="thread-view">
            <ThreadLog
              session={session}
              state={state}
              messages={messages}
              isRunning={isRunning}
              leaf={leaf}
              content={content}
              onPick={pick}
            />
          </div>
          <ThreadFoot session={session} state={state} follower={follower} waiting={waiting} onReview={review}>
            {state.phase !== "missing" && (
              <Composer
                draftKey={isNew ? NEW : session.id}
                isRunning={isRunning}
                isStopping={state.isStopping}
                model={state.model}
                editing={editing}
                onCancelEdit={endEditing}
                onSend={send}
                onSteer={(text) => session.steer(text)}
                onQueue={(text) => session.enqueue(text)}
                onStop={() => void session.stop()}
                onEditLast={editLast}
                onSettings={onSettings}
              />
            )}
          </ThreadFoot>
        </div>
        {inspected && <Inspector what={inspected} messages={messages} onClose={() => inspect(null)} />}
      </div>
      {isHelp && <KeyHelp onClose={() => setHelp(false)} />}
    </Thread>
  );
}

type Send = (text: string, files: Attachment[], settings: Settings) => Promise<boolean>;

/** Return a function that sends an example to the chosen model, with its tool if the model has it. */
function usePick(session: Session, send: Send): (text: string, tool: string | null) => void {
  const models = useModels();
  return (text, tool) => {
    const { settings } = session;
    const has = !settings.model || isThere(models.find((model) => model.name === settings.model)?.tools[tool ?? ""]);
    void send(text, [], tool && has ? { ...settings, tools: [tool] } : settings);
  };
}
