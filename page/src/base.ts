/** Mount path of the server, without a trailing slash. The server writes it into index.html. */
export const BASE = document.querySelector<HTMLMetaElement>('meta[name="sidestream-base"]')?.content ?? "";
