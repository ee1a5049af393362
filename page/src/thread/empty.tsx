import { words } from "../words";
import { useAbout } from "./models";

/** A page without messages: who answers here, and what could be asked. */
export function Empty({ onPick }: { onPick: (text: string) => void }) {
  const about = useAbout();
  if (!about) return null;
  const examples = about.examples.length > 0 ? about.examples : words.examples;
  return (
    <div className="empty">
      <h2 dir="auto">{about.agents[0] ?? about.default}</h2>
      <ul>
        {examples.slice(0, 4).map((example) => (
          <li key={example}>
            <button type="button" className="button example" dir="auto" onClick={() => onPick(example)}>
              {example}
            </button>
          </li>
        ))}
      </ul>
    </div>
  );
}
