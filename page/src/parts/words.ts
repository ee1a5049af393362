// UI strings of errors.
import type { Provider } from "../api";
import type { ErrorData, RunData } from "../chat/types";
import { count } from "../format";

/** What happened, in a sentence; null if the run ended as it should. */
export function errorWords(
  error: ErrorData | null,
  run: RunData | null,
  other: string | null,
  provider: Provider | null,
): string | null {
  const who = provider?.label ?? "The provider";
  if (error) {
    switch (error.kind) {
      case "provider":
        if (error.status === 401 || error.status === 403) {
          const check = provider?.variable ? `Check ${provider.variable}.` : error.message;
          return `${who} refused the key (${error.status}). ${check}`;
        }
        return error.status ? `${who} answered ${error.status}: ${error.message}` : error.message;
      case "rate-limit":
        return `${who} asks to wait. ${error.message}`;
      case "timeout":
        return `No data came for too long, so the run was stopped. ${error.message}`;
      case "truncated":
        return "The answer broke off before its end.";
      case "protocol":
        return `${who} sent something that is not its protocol. ${error.message}`;
      default:
        return error.message;
    }
  }
  if (other) return other;
  switch (run?.reason) {
    case "limit":
      return typeof run.limit === "number"
        ? `Stopped at ${count(run.limit)} steps.`
        : `Stopped at a limit${run.limit ? `: ${run.limit}` : ""}.`;
    case "length":
      return "Cut at the most tokens that an answer may have.";
    case "content-filter":
      return "The provider stopped this answer.";
    default:
      return null;
  }
}
