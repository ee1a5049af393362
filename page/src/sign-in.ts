// A page that is opened with `#token=…` gets a cookie in its place: the token leaves the address and the history.
import { url } from "./api";

function tokenIn(hash: string): string | null {
  return new URLSearchParams(hash.slice(1)).get("token");
}

/** Signs in with the token of the address, if it has one. Whatever is refused then says that it needs a token. */
export async function signIn(): Promise<void> {
  const token = tokenIn(window.location.hash);
  if (token === null) return;
  const { pathname, search } = window.location;
  window.history.replaceState(window.history.state, "", pathname + search);
  const headers = { authorization: `Bearer ${token}` };
  await fetch(url("/api/sign-in"), { method: "POST", headers }).catch(() => undefined);
}

/** An address with a token that is opened where the page is open already changes nothing but the fragment. */
window.addEventListener("hashchange", () => {
  if (tokenIn(window.location.hash) !== null) void signIn().then(() => window.location.reload());
});
