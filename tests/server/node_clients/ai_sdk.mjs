// `useChat` without React: the `Chat` of @ai-sdk/react over the transports of `ai`, as they are.
import { packageIn, serve } from "./lines.mjs";

const [, , modules, url] = process.argv;
const load = packageIn(modules);
const ai = await load("ai");
const { Chat } = await load("@ai-sdk/react");
const chats = new Map();
const seen = new Map();

const transports = {
  http: (body) => new ai.DefaultChatTransport({ api: `${url}/api/chat`, body }),
  websocket: (body) => new ai.WebSocketChatTransport({ url: `${url}/api/chat/ws`, body }),
};
const automatic = {
  approvals: ai.lastAssistantMessageIsCompleteWithApprovalResponses,
  outputs: ai.lastAssistantMessageIsCompleteWithToolCalls,
};

const state = (chat) => ({
  status: chat.status,
  error: chat.error?.message ?? null,
  statusCode: chat.error?.statusCode ?? null,
  messages: chat.messages,
});

/** Resolves with the state as soon as the condition holds; it is checked whenever the chat changes. */
function until(chat, condition) {
  return new Promise((resolve) => {
    const stops = [];
    const check = () => {
      if (!condition(chat)) return;
      for (const stop of stops) stop();
      resolve(state(chat));
    };
    stops.push(chat["~registerMessagesCallback"](check), chat["~registerStatusCallback"](check));
    check();
  });
}

const isAtRest = (chat) => chat.status === "ready" || chat.status === "error";

serve({
  open({ chat: id, transport = "http", body = {}, when, messages = [] }) {
    seen.set(id, { data: [], calls: [], finishes: [] });
    const log = seen.get(id);
    const chat = new Chat({
      id,
      messages,
      transport: transports[transport](body),
      sendAutomaticallyWhen: when && automatic[when],
      onData: (part) => void log.data.push(part),
      onToolCall: ({ toolCall }) => void log.calls.push(toolCall),
      onFinish: ({ isAbort, isError, isDisconnect, finishReason }) =>
        void log.finishes.push({ isAbort, isError, isDisconnect, finishReason }),
    });
    chats.set(id, chat);
  },
  /** Sends and waits for the end; with `detached`, only begins. */
  async send({ chat: id, detached, ...message }) {
    const chat = chats.get(id);
    const sending = chat.sendMessage(message);
    if (detached) return void sending.catch(() => {});
    await sending;
    return state(chat);
  },
  async regenerate({ chat: id }) {
    const chat = chats.get(id);
    await chat.regenerate();
    return state(chat);
  },
  async stop({ chat: id }) {
    const chat = chats.get(id);
    await chat.stop();
    return until(chat, isAtRest);
  },
  async resume({ chat: id, detached }) {
    const chat = chats.get(id);
    const resuming = chat.resumeStream();
    if (detached) return void resuming.catch(() => {});
    await resuming;
    return state(chat);
  },
  /** Decides, and waits for the end of the turn that follows by itself. */
  async approve({ chat: id, approval, approved, reason }) {
    const chat = chats.get(id);
    const began = until(chat, () => !isAtRest(chat));
    await chat.addToolApprovalResponse({ id: approval, approved, reason });
    await began;
    return until(chat, isAtRest);
  },
  async output({ chat: id, tool, call, output }) {
    const chat = chats.get(id);
    const began = until(chat, () => !isAtRest(chat));
    await chat.addToolOutput({ tool, toolCallId: call, output });
    await began;
    return until(chat, isAtRest);
  },
  /** Waits until the text of the last message holds this. */
  said: ({ chat: id, text }) =>
    until(chats.get(id), (chat) => JSON.stringify(chat.messages.at(-1)?.parts ?? []).includes(text)),
  rest: ({ chat: id }) => until(chats.get(id), isAtRest),
  state: ({ chat: id }) => state(chats.get(id)),
  seen: ({ chat: id }) => seen.get(id),
  /** What the package itself says of messages that would be posted back. */
  validate: async ({ messages }) => (await ai.validateUIMessages({ messages })).length,
  /** All messages that `readUIMessageStream` makes of one response, from the transport itself. */
  async read({ chat: id, text }) {
    const message = { id: "u1", role: "user", parts: [{ type: "text", text }] };
    const stream = await transports.http().sendMessages({
      chatId: id,
      messages: [message],
      trigger: "submit-message",
      messageId: undefined,
    });
    const messages = [];
    for await (const message of ai.readUIMessageStream({ stream })) messages.push(structuredClone(message));
    return {
      states: messages.map((message) => message.parts.map((part) => part.state ?? part.type)),
      previews: messages.filter((message) => message.parts.some((part) => part.preliminary)).length,
      last: messages.at(-1),
    };
  },
});
