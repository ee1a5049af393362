// Which links of a model's text may be followed, and what a reader must know of them before.
const SAFE = new Set(["http:", "https:", "mailto:"]);
const LONG_QUERY = 200;
const HOST = /(?:^|[\s/@])((?:[a-z0-9-]+\.)+[a-z]{2,})(?=$|[\s/:?#])/i;

export interface SafeLink {
  href: string;
  host: string;
  /** The real host, if the text of the link names another. */
  warning: string | null;
  /** True if the address carries so much text that the reader should see it first. */
  isLong: boolean;
}

/** The link, or null if it must stay text. */
export function safeLink(href: string, text: string): SafeLink | null {
  let address: URL;
  try {
    address = new URL(href);
  } catch {
    return null;
  }
  if (!SAFE.has(address.protocol)) return null;
  const named = HOST.exec(text)?.[1]
    ?.toLowerCase()
    .replace(/^www\./, "");
  const host = address.protocol === "mailto:" ? address.pathname.split("@").pop()! : address.host;
  const bare = host
    .toLowerCase()
    .replace(/^www\./, "")
    .replace(/:\d+$/, "");
  const isOther = named !== undefined && named !== bare && !bare.endsWith(`.${named}`);
  const carried = address.search.length + address.hash.length + address.username.length + address.password.length;
  return { href: address.href, host, warning: isOther ? host : null, isLong: carried > LONG_QUERY };
}

/** An address as it is shown: without the parameters that only say where a reader comes from. */
export function withoutTracking(address: string): string {
  const [before = "", anchor] = address.split(/(?=#)/, 2);
  const [path = "", query] = before.split(/\?(.*)/s, 2);
  if (!query?.includes("utm_")) return address;
  const kept = query.split("&").filter((field) => !/^utm_\w+(=|$)/.test(field));
  return path + (kept.length ? `?${kept.join("&")}` : "") + (anchor ?? "");
}

/** The host of an address, for words; the address itself if it has none. */
export function hostOf(address: string): string {
  try {
    return new URL(address).host.replace(/^www\./, "") || address;
  } catch {
    return address;
  }
}
