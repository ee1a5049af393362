// The HttpAgent of @ag-ui/client, and its checks of event streams, as they are.
import { packageIn, serve } from "./lines.mjs";

const [, , modules, url] = process.argv;
const load = packageIn(modules);
const { AbstractAgent, HttpAgent } = await load("@ag-ui/client");
const { from } = await load("rxjs");
const agents = new Map();
const waiters = new Set();
const warnings = [];
console.warn = (...words) => void warnings.push(words.map(String).join(" "));

class Played extends AbstractAgent {
  constructor(events) {
    super({ threadId: "t1" });
    this.events = events;
  }
  run() {
    return from(this.events);
  }
}

const state = (agent) => ({ messages: agent.messages, interrupts: agent.pendingInterrupts ?? null, warnings });

serve({
  open({ thread, path = "/api/agui", headers = {} }) {
    agents.set(thread, new HttpAgent({ url: url + path, threadId: thread, headers }));
  },
  /** Runs the agent to its end, with a message, tools, or answers to interrupts. */
  async run({ thread, message, toolMessage, ...parameters }) {
    const agent = agents.get(thread);
    if (message) agent.addMessage({ role: "user", ...message });
    if (toolMessage) agent.addMessage({ role: "tool", ...toolMessage });
    const events = [];
    const errors = [];
    const { result } = await agent.runAgent(parameters, {
      onEvent: ({ event }) => {
        events.push(event);
        for (const check of waiters) check(thread, event);
      },
      onRunFailed: ({ error }) => void errors.push(String(error?.message ?? error)),
    });
    return { ...state(agent), events, errors, result: result ?? null };
  },
  /** Waits for an event of a thread that holds this text. */
  seen: ({ thread, text }) =>
    new Promise((resolve) => {
      const check = (from, event) => {
        if (from !== thread || !JSON.stringify(event).includes(text)) return;
        waiters.delete(check);
        resolve(event);
      };
      waiters.add(check);
    }),
  abort({ thread }) {
    agents.get(thread).abortRun();
  },
  /** What the client makes of a recorded stream; it throws at the first event that must not come. */
  async play({ events }) {
    const agent = new Played(events);
    await agent.runAgent({ runId: "r1" });
    return state(agent);
  },
});
