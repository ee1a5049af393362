import type { Grant } from "../api";
import { Icon } from "../ui/icons";
import { Visible } from "./arguments";
import { approvalWords as say } from "./words";
import "./approval.css";

interface Props {
  grants: Grant[];
  onWithdraw: (grant: string) => void;
}

/** The tools that run without a question in this conversation, each with the way to take that back. */
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
