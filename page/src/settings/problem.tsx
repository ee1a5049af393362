import { settingsWords as words } from "./words";

/** What went wrong, in the server's words, and what to do. */
export function Problem({ text, onRetry }: { text: string; onRetry?: () => void }) {
  return (
    <div className="st-problem" role="alert">
      <pre>{text}</pre>
      {onRetry && (
        <button type="button" className="button" onClick={onRetry}>
          {words.retry}
        </button>
      )}
    </div>
  );
}
