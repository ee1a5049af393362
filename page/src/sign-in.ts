// Exchange `#token=…` for a cookie, and remove the token from the URL and the history.
import { url } from "./api";

function tokenIn(hash: string): string | null {
  return new URLSearchParams(hash.slice(1)).get("token");
}

/** Sign in with the token in the URL, if any. If that fails, later requests report the missing token. */
export async function signIn(): Promise<void> {
  const token = tokenIn(window.location.hash);
  if (token === null) return;
  const { pathname, search } = window.location;
  window.history.replaceState(window.history.state, "", pathname + search);
  const headers = { authorization: `Bearer ${token}` };
  await fetch(url("/api/sign-in"), { method: "POST", headers }).catch(() => undefined);
}

/** Handle a token URL opened in a tab that shows the page: the browser changes only the fragment. */
window.addEventListener("hashchange", () => {
  if (tokenIn(window.location.hash) !== null) void signIn().then(() => window.location.reload());
});
