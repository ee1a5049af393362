import { things } from "../format";

export const approvalWords = {
  ask: (tool: string, server: string | null) => (server ? `Allow ${tool} on ${server}?` : `Allow ${tool}?`),
  asks: (name: string) => `${name} needs your input`,
  forCall: (tool: string) => `For the call to ${tool}:`,
  claim: "In its own words:",
  send: "Send answers (Y)",
  visited: "I have done that (Y)",
  decline: "Decline (D)",
  leadsTo: (host: string) => `The link leads to ${host}.`,
  changed: "Crossed out: the values in the last call to this tool.",
  remote: (server: string | null) => (server ? `The provider would call ${server}.` : "The provider would run it."),
  local: "It would run on this server.",
  origin: (text: string) => `${text.charAt(0).toUpperCase()}${text.slice(1).replace(/\.$/, "")}.`,
  read: (hosts: string[]) => `This run has read: ${hosts.join(", ")}.`,
  expires: (time: string, left: string) => `Decide by ${time} (${left} left).`,
  expired: (time: string) => `Expired at ${time}. You can only deny it now. If you still want it, ask again.`,
  deny: "Deny (D)",
  allow: "Allow once (Y)",
  allowAll: "Allow in this conversation",
  allowAllWhat: (tool: string) => `Later calls to ${tool} run without asking you, in this conversation only`,
  grants: "Allowed in this conversation:",
  withdraw: (tool: string) => `Revoke ${tool}: ask before each call again`,
  granted: (tool: string, server: string | null) =>
    `Ran without asking: you allowed ${tool}${server ? ` on ${server}` : ""} in this conversation.`,
  withdrawn: "No longer allowed.",
  withdrawThis: "Revoke",
  denyNow: "Deny the call",
  declineNow: "Decline",
  back: "Back",
  reason: "Reason for denying (optional)",
  readAll: "Scroll to the end of the arguments first",
  details: "Details",
  allowed: "Allowed by you",
  denied: "Denied by you",
  policy: (isAllowed: boolean) => (isAllowed ? "Allowed by a rule" : "Denied by a rule"),
  allowedWaits: "Allowed. Other calls still need your approval.",
  deniedWaits: "Denied. Other calls still need your approval.",
  waiting: (count: number) => `${things(count, "call needs", "calls need")} your approval`,
  review: "Review",
  denyAll: "Deny all",
} as const;

export const fieldWords = {
  optional: "(optional)",
  choose: "Choose…",
  needed: "This field is required.",
  number: (kind: string) => (kind === "integer" ? "Enter a whole number." : "Enter a number."),
  between: (min: number | null, max: number | null, what: string) => {
    const of = what && ` ${what}`;
    if (min !== null && max !== null) return min === max ? `Exactly ${min}${of}.` : `From ${min} to ${max}${of}.`;
    return min !== null ? `At least ${min}${of}.` : `At most ${max}${of}.`;
  },
  characters: "characters",
  entries: "entries",
  email: "Enter an e-mail address.",
  address: "Enter a URL, such as https://example.com.",
  pattern: "Enter a value in the format that the server expects.",
} as const;
