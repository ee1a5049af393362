import { settingsWords as words } from "./words";

/** The server's error message, and what to do. */
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
