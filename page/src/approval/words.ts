import { things } from "../format";

export const approvalWords = {
  ask: (tool: string, server: string | null) => (server ? `Allow ${tool} on ${server}?` : `Allow ${tool}?`),
  asks: (name: string) => `${name} asks you`,
  forCall: (tool: string) => `For the call of ${tool}:`,
  claim: "In its own words:",
  send: "Send answers (Y)",
  visited: "I have done that (Y)",
  decline: "Decline (D)",
  leadsTo: (host: string) => `It leads to ${host}.`,
  changed: "Struck out: what it was at the last call of this tool.",
  remote: (server: string | null) => (server ? `The provider would call ${server}.` : "The provider would run it."),
  local: "It would run here, on this server.",
  origin: (text: string) => `${text.charAt(0).toUpperCase()}${text.slice(1).replace(/\.$/, "")}.`,
  read: (hosts: string[]) => `This run has read: ${hosts.join(", ")}.`,
  expires: (time: string, left: string) => `Waits until ${time} (${left}).`,
  expired: (time: string) => `Expired at ${time}: it can only be denied now. Ask again if it is still wanted.`,
  deny: "Deny (D)",
  allow: "Allow once (Y)",
  allowAll: "Allow in this conversation",
  allowAllWhat: (tool: string) => `Later calls of ${tool} run without a question, in this conversation only`,
  grants: "Allowed in this conversation:",
  withdraw: (tool: string) => `Withdraw ${tool}: ask before each call again`,
  granted: (tool: string, server: string | null) =>
    `Ran without a question: you allowed ${tool}${server ? ` on ${server}` : ""} in this conversation.`,
  withdrawn: "That no longer holds.",
  withdrawThis: "Withdraw",
  reason: "Reason, if you deny",
  readAll: "Scroll to the end of the arguments first",
  details: "Details",
  allowed: "Allowed by you",
  denied: "Denied by you",
  policy: (isAllowed: boolean) => (isAllowed ? "Allowed by a rule" : "Denied by a rule"),
  allowedWaits: "Allowed; the other calls still wait for you.",
  deniedWaits: "Denied; the other calls still wait for you.",
  waiting: (count: number) => `${things(count, "call waits", "calls wait")} for you`,
  review: "Review",
  denyAll: "Deny all",
} as const;

export const fieldWords = {
  optional: "(optional)",
  choose: "Choose…",
  needed: "This is needed.",
  number: (kind: string) => (kind === "integer" ? "A whole number is needed." : "A number is needed."),
  between: (min: number | null, max: number | null, what: string) => {
    const of = what && ` ${what}`;
    if (min !== null && max !== null) return min === max ? `Exactly ${min}${of}.` : `From ${min} to ${max}${of}.`;
    return min !== null ? `At least ${min}${of}.` : `At most ${max}${of}.`;
  },
  characters: "characters",
  entries: "entries",
  email: "An e-mail address is needed.",
  address: "An address is needed, such as https://example.com.",
  pattern: "This does not have the form that the server asks for.",
} as const;
