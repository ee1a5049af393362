/** The path below which the server is mounted, without a slash at its end; the server writes it into index.html. */
export const BASE = document.querySelector<HTMLMetaElement>('meta[name="sidestream-base"]')?.content ?? "";
