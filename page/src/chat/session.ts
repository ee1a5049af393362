// One conversation, outside of React: the AI SDK's `Chat`, and around it what the server knows of the conversation.
// It survives that its page is left, so that coming back costs nothing.
import { Chat } from "@ai-sdk/react";
import { generateId, isToolUIPart } from "ai";
import { ApiError, api, type Grant, type Leaf } from "../api";
import { isMissing, type List, refreshConversations } from "../rail/conversations";
import { words } from "../words";
import { readQueue, writeQueue } from "./drafts";
import { type Decision, PageTransport, pause, type Want } from "./transport";
import type { PageMessage, SteerData } from "./types";
import type { Attachment } from "./uploads";
import { pendingApprovals } from "./view";
import { announceChange } from "./windows";

export interface Steering {
  id: string;
  text: string;
  state: "sending" | "waits" | "missed";
}

export interface SessionState {
  phase: "new" | "loading" | "open" | "missing" | "failed";
  title: string;
  /** Who answered last; null before the first answer. */
  model: string | null;
  leaf: number | null;
  leaves: Leaf[];
  isOffline: boolean;
  /** What the server refused, in words. */
  refusal: string | null;
  /** Messages that were sent while the run was in progress, and that it has not read yet. */
  steering: Steering[];
  /** What is sent when the answer ends. */
  queue: string | null;
  /** Decisions on calls, until all of the turn are made: the server takes them together. */
  decisions: Decision[];
  /** Tools that may run without a question in this conversation. The server keeps them. */
  grants: Grant[];
  /** True from the stop to the end of the stream. */
  isStopping: boolean;
}

const START: SessionState = {
  phase: "new",
  title: "",
  model: null,
  leaf: null,
  leaves: [],
  isOffline: false,
  refusal: null,
  steering: [],
  queue: null,
  decisions: [],
  grants: [],
  isStopping: false,
};

export interface Settings {
  model?: string;
  thinking?: string;
  tools?: string[];
}

export class Session {
  readonly chat: Chat<PageMessage>;
  state: SessionState = START;
  /** Call → its code as far as it is written. */
  readonly code = new Map<string, string>();
  private readonly listeners = new Set<() => void>();
  private readonly codeListeners = new Set<() => void>();
  /** What is chosen in the composer: it holds for whatever is sent next, by a button in the thread too. */
  settings: Settings = {};
  private isCut = false;
  /** Counts the times that the conversation was read: who followed a stream before that has nothing left to do. */
  private readings = 0;
  private reading: AbortController | null = null;

  constructor(readonly id: string) {
    this.chat = new Chat<PageMessage>({
      id,
      transport: new PageTransport({
        accepted: (leaf) => this.accepted(leaf),
        lost: () => this.set({ isOffline: true }),
        found: () => this.state.isOffline && this.set({ isOffline: false }),
        ended: (isComplete) => {
          this.isCut = !isComplete;
        },
        parts: () => this.chat.lastMessage?.parts.length ?? 0,
      }),
      onData: (part) => {
        if (part.type === "data-code") {
          const { call, delta, whole } = part.data;
          this.code.set(call, whole ? delta : (this.code.get(call) ?? "") + delta);
          for (const listener of this.codeListeners) listener();
        } else if (part.type === "data-steer") this.steered(part.data);
      },
    });
  }

  subscribe = (listener: () => void): (() => void) => {
    this.listeners.add(listener);
    return () => this.listeners.delete(listener);
  };

  subscribeCode = (listener: () => void): (() => void) => {
    this.codeListeners.add(listener);
    return () => this.codeListeners.delete(listener);
  };

  snapshot = (): SessionState => this.state;

  get isRunning(): boolean {
    return this.chat.status === "submitted" || this.chat.status === "streaming";
  }

  /** Reads the conversation, and follows its run if one is in progress. */
  async load(leaf: number | null = null): Promise<void> {
    this.reading?.abort();
    const reading = new AbortController();
    this.reading = reading;
    this.readings += 1;
    if (this.isRunning) await this.chat.stop();
    if (this.chat.messages.length === 0) this.set({ phase: "loading" });
    for (let attempt = 0; !reading.signal.aborted; attempt += 1) {
      try {
        const found = await api.chat(this.id, leaf, reading.signal);
        this.chat.messages = found.messages;
        this.chat.clearError();
        this.code.clear();
        this.set({
          phase: "open",
          title: found.title ?? "",
          model: found.model,
          leaf: found.leaf,
          leaves: found.leaves,
          isOffline: false,
          grants: found.grants,
          decisions: [],
          queue: this.state.queue ?? readQueue(this.id),
          steering: this.state.steering.filter((one) => one.state === "missed"),
        });
        if (found.run?.status === "running") {
          for (const part of found.messages.at(-1)?.parts ?? []) {
            if (part.type === "data-steer" && part.data.status === "accepted") this.steered(part.data);
          }
          void this.follow({ tail: found.seq, leaf: found.leaf });
        } else this.sendQueue();
        return;
      } catch (error) {
        if (reading.signal.aborted) return;
        if (error instanceof ApiError) {
          this.set({ phase: error.status === 404 ? "missing" : "failed", refusal: sentence(error.message) });
          return;
        }
        this.set({ isOffline: true });
        await pause(attempt, reading.signal).catch(() => undefined);
      }
    }
  }

  /** Sends a message, or another version of one; resolves with true when the server has taken it. */
  send(text: string, files: Attachment[], settings = this.settings, messageId?: string): Promise<boolean> {
    const message: Omit<PageMessage, "id"> = {
      role: "user",
      metadata: { createdAt: Date.now() / 1000 },
      parts: [
        ...files.map(({ url, name, mediaType }) => ({ type: "file" as const, url, filename: name, mediaType })),
        ...(text ? [{ type: "text" as const, text }] : []),
      ],
    };
    const before = this.chat.messages;
    const want: Want = { ...settings, leaf: this.state.leaf };
    return this.requested(
      () =>
        this.chat.sendMessage(messageId ? { ...message, messageId } : { ...message, id: generateId() }, { body: want }),
      before,
    );
  }

  /** Asks the question of an answer again, in a branch of its own. */
  retry(messageId: string): Promise<boolean> {
    const want: Want = { ...this.settings, leaf: this.state.leaf };
    const before = this.chat.messages;
    return this.requested(() => this.chat.regenerate({ messageId, body: want }), before);
  }

  /** Notes a decision; sends all of them when none is missing. */
  decide(decision: Decision): Promise<boolean> {
    const others = this.state.decisions.filter((one) => one.approvalId !== decision.approvalId);
    const decisions = [...others, decision];
    this.set({ decisions, refusal: null });
    const made = new Map(decisions.map((one) => [one.approvalId, one]));
    const waiting = pendingApprovals(this.chat.messages);
    if (!waiting.every((one) => made.has(one.approval))) return Promise.resolve(false);
    const before = this.chat.messages;
    this.chat.messages = before.map((message) => withDecisions(message, made));
    const body: Want = { decisions: waiting.map((one) => made.get(one.approval)!), leaf: this.state.leaf };
    const taken = this.requested(() => this.chat.sendMessage(undefined, { body }), before);
    if (decisions.some((one) => one.remember)) void taken.then((isTaken) => (isTaken ? this.readGrants() : undefined));
    return taken;
  }

  /** Withdraws what was allowed in this conversation: the next call of the tool waits for the person again. */
  async withdraw(grant: string): Promise<void> {
    try {
      await api.withdraw(this.id, grant);
    } catch (error) {
      if (!(error instanceof ApiError && error.status === 404)) this.set({ refusal: (error as Error).message });
    }
    await this.readGrants();
  }

  private async readGrants(): Promise<void> {
    try {
      this.set({ grants: (await api.grants(this.id, this.state.leaf)).grants });
    } catch {
      // They are read again with the end of the answer.
    }
  }

  async stop(): Promise<void> {
    this.set({ isStopping: true });
    await this.taken;
    try {
      await api.stop(this.id, this.state.leaf);
    } catch (error) {
      this.set({ isStopping: false, refusal: (error as Error).message });
    }
  }

  /** Passes a message to the run in progress, once the server has the message that starts it. */
  async steer(text: string): Promise<void> {
    const sent: Steering = { id: generateId(), text, state: "sending" };
    this.set({ steering: [...this.state.steering, sent] });
    await this.taken;
    try {
      const { id } = await api.steer(this.id, text, this.state.leaf);
      if (isRead(this.chat.messages, id)) this.dropSteering(sent.id);
      else this.changeSteering(sent.id, { id, state: "waits" });
    } catch (error) {
      if (error instanceof ApiError) return this.changeSteering(sent.id, { state: "missed" });
      // It did not reach the server: whoever wrote it has it back.
      this.dropSteering(sent.id);
      this.set({ refusal: (error as Error).message });
      throw error;
    }
  }

  /** The run has got a message, from here or from another window, or has read it. */
  private steered({ id, status, text }: SteerData): void {
    const isKnown = this.state.steering.some((one) => one.id === id || (one.state === "sending" && one.text === text));
    if (status === "applied") this.dropSteering(id);
    else if (status === "accepted" && !isKnown) {
      this.set({ steering: [...this.state.steering, { id, text, state: "waits" }] });
    }
  }

  private changeSteering(id: string, change: Partial<Steering>): void {
    this.set({ steering: this.state.steering.map((one) => (one.id === id ? { ...one, ...change } : one)) });
  }

  dropSteering(id: string): void {
    this.set({ steering: this.state.steering.filter((one) => one.id !== id) });
  }

  /** Sends a text when the answer ends, after what waits already. */
  enqueue(text: string): void {
    this.keepQueue(this.state.queue === null ? text : `${this.state.queue}\n\n${text}`);
  }

  dropQueue(): void {
    this.keepQueue(null);
  }

  private keepQueue(queue: string | null): void {
    writeQueue(this.id, queue);
    this.set({ queue });
  }

  /** Sends what waited for the end of the answer. */
  private sendQueue(): void {
    const text = this.state.queue;
    if (text === null || pendingApprovals(this.chat.messages).length > 0) return;
    this.keepQueue(null);
    void this.send(text, []);
  }

  clearRefusal(): void {
    this.set({ refusal: null });
  }

  set(change: Partial<SessionState>): void {
    this.state = { ...this.state, ...change };
    for (const listener of this.listeners) listener();
  }

  /** Called once, when the server has taken the next message. */
  onOpen: (() => void) | null = null;

  /** Reads the conversation again if another reader or writer has changed it. */
  async refresh(): Promise<void> {
    try {
      const found = await api.chat(this.id, this.state.leaf);
      this.set({ leaves: found.leaves, title: found.title ?? "", grants: found.grants });
      const isSame = found.messages.length === this.chat.messages.length && found.run?.status !== "running";
      if (this.isRunning || (isSame && pendingApprovals(this.chat.messages).length === 0)) return;
    } catch (error) {
      this.isGone(error);
      return;
    }
    await this.load(this.state.leaf);
  }

  private accepted(leaf: number | null): void {
    this.onAccepted();
    this.onOpen?.();
    this.onOpen = null;
    this.set({ phase: "open", leaf: leaf ?? this.state.leaf, refusal: null, isOffline: false });
    this.changed();
  }

  private changed(): void {
    refreshConversations();
    announceChange(this.id);
  }

  /** Reads the conversation again if the server's list shows that it has changed, or no longer has it. */
  listed(list: List): void {
    if (this.isRunning || this.state.phase !== "open") return;
    const known = Math.max(0, ...this.state.leaves.map((leaf) => leaf.updated));
    const updated = list.conversations.find((row) => row.id === this.id)?.updated ?? 0;
    if (updated > known || isMissing(list, this.id, known)) void this.refresh();
  }

  private onAccepted: () => void = () => undefined;
  /** Whether the server has taken the last message, as soon as that is known. */
  private taken: Promise<boolean> = Promise.resolve(true);

  /** Makes a request and follows its stream; resolves when the server has taken it, or with false if it has not. */
  private requested(request: () => Promise<void>, before: PageMessage[]): Promise<boolean> {
    this.set({ refusal: null });
    this.taken = new Promise((resolve) => {
      let isTaken = false;
      this.onAccepted = () => {
        isTaken = true;
        resolve(true);
      };
      void this.followed(request).then(() => {
        if (isTaken) return;
        this.refused(before);
        resolve(false);
      });
    });
    return this.taken;
  }

  /** The server did not take a message: the conversation is as before, and the person learns why. */
  private refused(before: PageMessage[]): void {
    const error = this.chat.error;
    this.chat.messages = before;
    this.chat.clearError();
    const { status = 0, code = null } = error instanceof ApiError ? error : {};
    const known = REFUSALS[code ?? ""] ?? REFUSED[status];
    this.set({ refusal: known ?? sentence(error?.message ?? words.unreachable) });
    if (status === 409 || status === 403) void this.load(this.state.leaf);
  }

  private follow(want: Want): Promise<void> {
    return this.followed(() => this.chat.sendMessage(undefined, { body: want }));
  }

  /** Reads a stream to its end. One that was cut off is joined again, by a snapshot and the rest. */
  private async followed(request: () => Promise<void>): Promise<void> {
    this.isCut = false;
    const readings = this.readings;
    await request();
    if (readings !== this.readings) return;
    if (this.isCut) {
      this.set({ isOffline: true });
      await this.load(this.state.leaf);
      return;
    }
    const error = this.chat.error;
    if (error instanceof ApiError && error.code === "stale") {
      await this.load(this.state.leaf);
      return;
    }
    this.settled();
  }

  private settled(): void {
    const missed = this.state.steering.filter((one) => !isRead(this.chat.messages, one.id));
    this.set({
      isStopping: false,
      decisions: [],
      steering: missed.map((one) => (one.state === "sending" ? one : { ...one, state: "missed" as const })),
    });
    this.changed();
    void this.readBranches();
    this.sendQueue();
  }

  private async readBranches(): Promise<void> {
    try {
      const { leaves, title, model, grants } = await api.chat(this.id, this.state.leaf);
      this.set({ leaves, title: title ?? "", model, grants });
    } catch (error) {
      this.isGone(error); // Else they are read again with the next answer.
    }
  }

  /** Another window may have deleted the conversation: then it is not shown as if it were there. */
  private isGone(error: unknown): void {
    if (!(error instanceof ApiError) || error.status !== 404 || this.state.phase !== "open") return;
    this.chat.messages = [];
    this.set({ phase: "missing", grants: [], steering: [], queue: null });
  }
}

/** Code of a refusal → what it means to the person. */
const REFUSALS: Record<string, string> = {
  nothing_waits: words.decidedElsewhere,
  approval_refused: words.changedArguments,
  approval_expired: words.expired,
};

/** Status of a refusal → what it means to the person. */
const REFUSED: Record<number, string> = { 409: words.conflict, 413: words.tooMuch };

/** The server's words as a sentence. */
const sentence = (text: string) => text.charAt(0).toUpperCase() + text.slice(1) + (/[.!?…]$/.test(text) ? "" : ".");

function withDecisions(message: PageMessage, made: Map<string, Decision>): PageMessage {
  const parts = message.parts.map((part) => {
    if (!isToolUIPart(part) || part.state !== "approval-requested") return part;
    const decision = made.get(part.approval.id);
    if (!decision) return part;
    const { approved, reason } = decision;
    return { ...part, state: "approval-responded" as const, approval: { ...part.approval, approved, reason } };
  });
  return { ...message, parts };
}

function isRead(messages: PageMessage[], id: string): boolean {
  return messages.some((message) =>
    message.parts.some((part) => part.type === "data-steer" && part.data.id === id && part.data.status === "applied"),
  );
}
