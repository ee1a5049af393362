// UI strings of errors.
import type { Provider } from "../api";
import type { ErrorData, RunData } from "../chat/types";
import { count } from "../format";

/** Describe an error or an early end in a sentence. Returns null if the run ended normally. */
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
          return `${who} rejected the API key (${error.status}). ${check}`;
        }
        return error.status ? `${who} returned ${error.status}: ${error.message}` : error.message;
      case "rate-limit":
        return `${who} is limiting requests. ${error.message}`;
      case "timeout":
        return `The run timed out. ${error.message}`;
      case "truncated":
        return "The answer was cut off.";
      case "protocol":
        return `${who} sent an invalid response. ${error.message}`;
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
      return "Stopped at the maximum number of output tokens.";
    case "content-filter":
      return "The provider blocked this answer.";
    default:
      return null;
  }
}
