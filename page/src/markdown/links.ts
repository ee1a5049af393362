// Which links in model output may be opened, and with which warning.
const SAFE = new Set(["http:", "https:", "mailto:"]);
const LONG_QUERY = 200;
const HOST = /(?:^|[\s/@])((?:[a-z0-9-]+\.)+[a-z]{2,})(?=$|[\s/:?#])/i;

export interface SafeLink {
  href: string;
  host: string;
  /** Real host, if the link text names another. */
  warning: string | null;
  /** Whether the URL is so long that the user should review it first. */
  isLong: boolean;
}

/** Return the link, or null if it must stay plain text. */
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

/** Format a URL for display, without tracking parameters. */
export function withoutTracking(address: string): string {
  const [before = "", anchor] = address.split(/(?=#)/, 2);
  const [path = "", query] = before.split(/\?(.*)/s, 2);
  if (!query?.includes("utm_")) return address;
  const kept = query.split("&").filter((field) => !/^utm_\w+(=|$)/.test(field));
  return path + (kept.length ? `?${kept.join("&")}` : "") + (anchor ?? "");
}

/** Return the host of a URL for display, or the URL itself if it has none. */
export function hostOf(address: string): string {
  try {
    return new URL(address).host.replace(/^www\./, "") || address;
  } catch {
    return address;
  }
}
