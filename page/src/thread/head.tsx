import type { PageMessage } from "../chat/types";
import { useCommand } from "../commands";
import { navigate } from "../router";
import { hasPanel } from "../routes";
import { Dialog } from "../ui/dialog";
import { Icon } from "../ui/icons";
import { Link } from "../ui/link";
import { words } from "../words";

interface Props {
  title: string;
  messages: PageMessage[];
  onMenu: () => void;
  onHelp: () => void;
}

export function ThreadHead({ title, messages, onMenu, onHelp }: Props) {
  return (
    <header className="thread-head">
      <button type="button" className="button quiet icon narrow-only" aria-label={words.menu} onClick={onMenu}>
        <Icon name="menu" />
      </button>
      <h1 dir="auto">{title}</h1>
      <button type="button" className="button quiet icon" title={words.keys} aria-label={words.keys} onClick={onHelp}>
        <Icon name="keyboard" />
      </button>
      <LastRun messages={messages} />
    </header>
  );
}

function LastRun({ messages }: { messages: PageMessage[] }) {
  const run = messages
    .flatMap(({ parts }) => parts.flatMap((part) => (part.type === "data-run" ? [part.data.run] : [])))
    .at(-1);
  const to = run && hasPanel("timeline") ? `/r/${encodeURIComponent(run)}` : null;
  useCommand("timeline", to === null ? null : () => navigate(to));
  if (to === null) return null;
  return (
    <Link to={to} className="button quiet" aria-label={words.timeline}>
      <Icon name="bars" /> <span className="wide-only">{words.timeline}</span>
    </Link>
  );
}

/** The keyboard shortcuts. */
export function KeyHelp({ onClose }: { onClose: () => void }) {
  return (
    <Dialog title={words.keys} onClose={onClose}>
      <dl className="key-map">
        {words.keyMap.map(([key, what]) => (
          <div key={key}>
            <dt>
              <kbd>{key}</kbd>
            </dt>
            <dd>{what}</dd>
          </div>
        ))}
      </dl>
    </Dialog>
  );
}
