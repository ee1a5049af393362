import { SIGN_IN } from "../base";
import { isThere } from "../tools/places";
import { words } from "../words";
import { useAbout, useModels } from "./models";

interface Props {
  /** Tool that the example uses. Null means the agent's tools. */
  onPick: (text: string, tool: string | null) => void;
}

interface Example {
  text: string;
  tool: string | null;
}

const MOST = 4;

/** Empty conversation: the model, and example questions with their tools. */
export function Empty({ onPick }: Props) {
  const { value: about, error } = useAbout();
  const model = useModels().find((one) => one.default);
  if (error) {
    return (
      <div className="notice" role="alert">
        <p>{error.message}</p>
        <SignIn message={error.message} />
      </div>
    );
  }
  if (!about) return null;
  // A small model seldom uses a tool well.
  const usable = Object.entries(words.toolExamples).filter(
    ([tool]) => model && !model.isAgent && !about.isEmbedded && isThere(model.tools[tool]),
  );
  const examples: Example[] =
    about.examples.length > 0
      ? about.examples.map((text) => ({ text, tool: null }))
      : [...usable.map(([tool, text]) => ({ text, tool })), ...words.examples.map((text) => ({ text, tool: null }))];
  return (
    <div className="empty">
      <div>
        <h2 dir="auto">{about.greeting || (model?.label ?? about.default)}</h2>
        {about.isEmbedded && <p className="muted">{words.embedded}</p>}
      </div>
      <ul>
        {examples.slice(0, MOST).map(({ text, tool }) => (
          <li key={text}>
            <button type="button" className="button example" dir="auto" onClick={() => onPick(text, tool)}>
              <span>{text}</span>
              {tool && <span className="meta">{words.uses(tool.replace(/_/g, " "))}</span>}
            </button>
          </li>
        ))}
      </ul>
    </div>
  );
}

/** Link to the operator's sign-in, if that is what the message asks for. */
export function SignIn({ message }: { message: string | null }) {
  if (SIGN_IN === null || message !== words.needsSignIn) return null;
  return (
    <a className="button primary" href={SIGN_IN}>
      {words.signIn}
    </a>
  );
}
