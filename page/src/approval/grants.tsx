import { useContext, useSyncExternalStore } from "react";
import type { Grant } from "../api";
import { Thread } from "../thread/context";
import { Icon } from "../ui/icons";
import { Visible } from "./arguments";
import { approvalWords as say } from "./words";
import "./approval.css";

interface Props {
  grants: Grant[];
  onWithdraw: (grant: string) => void;
}

/** The tools allowed in this conversation, each with a button to revoke it. */
export function Grants({ grants, onWithdraw }: Props) {
  if (grants.length === 0) return null;
  return (
    <div className="grants meta">
      <span>{say.grants}</span>
      <ul>
        {grants.map(({ id, tool, server }) => (
          <li key={id} dir="auto">
            <Visible text={server ? `${tool} · ${server}` : tool} />
            <button
              type="button"
              className="button quiet icon"
              title={say.withdraw(tool)}
              aria-label={say.withdraw(tool)}
              onClick={() => onWithdraw(id)}
            >
              <Icon name="close" />
            </button>
          </li>
        ))}
      </ul>
    </div>
  );
}

const never = () => () => undefined;

/** The approval that a call ran under, with a button to revoke it while it is in effect. */
export function Granted({ grant, tool, server }: { grant: string; tool: string; server: string | null }) {
  const { session } = useContext(Thread);
  const grants = useSyncExternalStore(session?.subscribe ?? never, () => session?.state.grants);
  const stands = grants?.some(({ id }) => id === grant) ?? false;
  return (
    <p className="decided granted meta" dir="auto" data-grant={grant} tabIndex={-1}>
      <span>
        <Visible text={say.granted(tool, server)} />
        {!stands && ` ${say.withdrawn}`}
      </span>
      {stands && (
        <button
          type="button"
          className="link"
          aria-label={say.withdraw(tool)}
          title={say.withdraw(tool)}
          onClick={({ currentTarget }) => {
            // The button is removed, so move the focus to its line.
            const line = currentTarget.closest<HTMLElement>(".granted");
            void session?.withdraw(grant).then(() => line?.focus());
          }}
        >
          {say.withdrawThis}
        </button>
      )}
    </p>
  );
}
