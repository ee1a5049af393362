// One conversation, outside React: the AI SDK's `Chat` and the server's state of the conversation.
// It outlives its page, so that returning to it needs no reload.
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
  /** Agent or model that answered last. Null before the first answer. */
  model: string | null;
  leaf: number | null;
  leaves: Leaf[];
  /** What the lost connection was for: a message that is not sent yet, a run, or the conversation itself. */
  offline: "send" | "run" | "read" | null;
  /** Message about the last refused request. */
  refusal: string | null;
  /** Steering messages that the run has not read yet. */
  steering: Steering[];
  /** Message to send after this answer. */
  queue: string | null;
  /** Decisions so far. The server accepts those of a turn together. */
  decisions: Decision[];
  /** Tools allowed in this conversation. The server stores them. */
  grants: Grant[];
  /** Whether the run is being stopped. */
  isStopping: boolean;
}

const START: SessionState = {
  phase: "new",
  title: "",
  model: null,
  leaf: null,
  leaves: [],
  offline: null,
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
  /** Code written so far, by call id. */
  readonly code = new Map<string, string>();
  private readonly listeners = new Set<() => void>();
  private readonly codeListeners = new Set<() => void>();
  /** Settings from the composer. They also apply to messages sent by buttons in the thread. */
  settings: Settings = {};
  private isCut = false;
  /** Number of loads. Streams that were opened before the latest load are ignored. */
  private readings = 0;
  private reading: AbortController | null = null;

  constructor(readonly id: string) {
    this.chat = new Chat<PageMessage>({
      id,
      transport: new PageTransport({
        accepted: (leaf) => this.accepted(leaf),
        lost: (isSent) => this.set({ offline: isSent ? "run" : "send" }),
        found: () => this.state.offline && this.set({ offline: null }),
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

  /** Load the conversation, and tail its run if one is in progress. */
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
          offline: null,
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
        // The run in which the connection broke may continue; of another one, this page knows nothing.
        if (this.state.offline === null) this.set({ offline: "read" });
        await pause(attempt, reading.signal).catch(() => undefined);
      }
    }
  }

  /** Send a message, or a new version of one. Resolves to true when the server has accepted it. */
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

  /** Ask the question of an answer again, in a new branch. */
  retry(messageId: string): Promise<boolean> {
    const want: Want = { ...this.settings, leaf: this.state.leaf };
    const before = this.chat.messages;
    return this.requested(() => this.chat.regenerate({ messageId, body: want }), before);
  }

  /** Record a decision, and send all decisions once the last one is made. */
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

  /** Revoke a remembered approval. The next call to the tool needs approval again. */
  async withdraw(grant: string): Promise<void> {
    try {
      await api.withdraw(this.id, grant);
    } catch (error) {
      if (!(error instanceof ApiError && error.status === 404)) this.set({ refusal: (error as Error).message });
    }
    await this.readGrants();
  }

  /** Have the citations of an answer checked, and show the result. */
  async checkEvidence(messageId: string): Promise<void> {
    this.set({ refusal: null });
    try {
      await api.checkEvidence(this.id, messageId, this.state.leaf);
      const found = await api.chat(this.id, this.state.leaf);
      const checked = found.messages.find((message) => message.id === messageId);
      this.chat.messages = this.chat.messages.map((message) =>
        message.id === messageId && checked ? checked : message,
      );
    } catch (error) {
      this.set({ refusal: sentence((error as Error).message) });
    }
  }

  private async readGrants(): Promise<void> {
    try {
      this.set({ grants: (await api.grants(this.id, this.state.leaf)).grants });
    } catch {
      // Approvals are reloaded when the answer ends.
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

  /** Steer the run in progress, once the server has accepted its first message. */
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
      // It did not reach the server, so restore it in the composer.
      this.dropSteering(sent.id);
      this.set({ refusal: (error as Error).message });
      throw error;
    }
  }

  /** Handle a steering message that the run has received or read, from any window. */
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

  /** Queue a message to send after the answer, behind those already queued. */
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

  /** Send the queued messages. */
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

  /** Called when the server accepts a message. Its branch is then the newest. */
  onOpen: (() => void) | null = null;

  /** Reload the conversation if another client has changed it. */
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
    this.set({ phase: "open", leaf: leaf ?? this.state.leaf, refusal: null, offline: null });
    this.changed();
  }

  private changed(): void {
    refreshConversations();
    announceChange(this.id);
  }

  /** Reload the conversation if the server's list shows a change or lacks it. */
  listed(list: List): void {
    const title = list.conversations.find((row) => row.id === this.id)?.title;
    // The list shows the newest branch, which may have another title.
    if (title && title !== this.state.title && this.state.phase === "open" && this.state.leaves.length < 2) {
      this.set({ title });
    }
    if (this.isRunning || this.state.phase !== "open") return;
    const known = Math.max(0, ...this.state.leaves.map((leaf) => leaf.updated));
    const updated = list.conversations.find((row) => row.id === this.id)?.updated ?? 0;
    if (updated > known || isMissing(list, this.id, known)) void this.refresh();
  }

  private onAccepted: () => void = () => undefined;
  /** Whether the server accepted the last message. */
  private taken: Promise<boolean> = Promise.resolve(true);

  /** Make a request and read its stream. Resolves to whether the server accepted it. */
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

  /** Restore the conversation after a refused message, and tell the user why. */
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

  /** Read a stream to its end. Rejoin a broken one with a snapshot and the remaining chunks. */
  private async followed(request: () => Promise<void>): Promise<void> {
    this.isCut = false;
    const readings = this.readings;
    await request();
    if (readings !== this.readings) return;
    if (this.isCut) {
      this.set({ offline: "run" });
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
      this.isGone(error); // Other errors: reloaded with the next answer.
    }
  }

  /** Show the conversation as missing if another window has deleted it. */
  private isGone(error: unknown): void {
    if (!(error instanceof ApiError) || error.status !== 404 || this.state.phase !== "open") return;
    this.chat.messages = [];
    this.set({ phase: "missing", grants: [], steering: [], queue: null });
  }
}

/** UI strings of refused requests, by error code. */
const REFUSALS: Record<string, string> = {
  nothing_waits: words.decidedElsewhere,
  approval_refused: words.changedArguments,
  approval_expired: words.expired,
};

/** UI strings of refused requests, by HTTP status. */
const REFUSED: Record<number, string> = { 409: words.conflict, 413: words.tooMuch };

/** Format a server message as a sentence. */
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
