// What the server writes into index.html.
const meta = (name: string) =>
  document.querySelector<HTMLMetaElement>(`meta[name="sidestream-${name}"]`)?.content ?? "";

/** Mount path of the server, without a trailing slash. */
export const BASE = meta("base");
/** Name of the page, which the server's operator chooses. */
export const APP = document.title || "Sidestream";
/** URL of the operator's icon. Null means the built-in one. */
export const ICON = document.querySelector<HTMLLinkElement>('link[rel="icon"][href$="/icon"]')?.href ?? null;
/** URL at which users sign in, if the operator has one. */
export const SIGN_IN = meta("sign-in") || null;
export const HAS_BRAND = ICON !== null || APP !== "Sidestream";
