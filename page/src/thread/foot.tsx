import type { ReactNode } from "react";
import { Grants } from "../approval/grants";
import { approvalWords } from "../approval/words";
import type { Follower } from "../chat/follow";
import type { Session, SessionState } from "../chat/session";
import type { ApprovalData } from "../chat/types";
import { Icon } from "../ui/icons";
import { words } from "../words";

interface Props {
  session: Session;
  state: SessionState;
  follower: Follower;
  /** Calls that need approval. */
  waiting: ApprovalData[];
  onReview: () => void;
  /** The composer. */
  children: ReactNode;
}

/** The composer, and the notices above it. */
export function ThreadFoot({ session, state, follower, waiting, onReview, children }: Props) {
  return (
    <div className="thread-foot">
      {/* Pending calls have their own bar, and the pill would cover its buttons. */}
      {follower.hasNew && waiting.length === 0 && (
        <button type="button" className="button pill" onClick={follower.toEnd}>
          <Icon name="down" /> {words.newBelow}
        </button>
      )}
      {state.offline && (
        <p className="bar" role="status">
          {words.offline[state.offline]}
        </p>
      )}
      {waiting.length > 0 && (
        <div className="waiting-bar">
          <span>{approvalWords.waiting(waiting.length)}</span>
          <button type="button" className="button" onClick={onReview}>
            {approvalWords.review}
          </button>
          {waiting.length > 1 && (
            <button type="button" className="button" onClick={() => denyAll(session, waiting)}>
              {approvalWords.denyAll}
            </button>
          )}
        </div>
      )}
      <Grants grants={state.grants} onWithdraw={(grant) => void session.withdraw(grant)} />
      {state.refusal && state.phase !== "failed" && state.phase !== "missing" && (
        <p className="bar refusal" role="alert" dir="auto">
          {state.refusal}
          <button
            type="button"
            className="button quiet icon"
            aria-label={words.close}
            onClick={() => session.clearRefusal()}
          >
            <Icon name="close" />
          </button>
        </p>
      )}
      {children}
    </div>
  );
}

/** Deny every pending call. Each decision is bound to the arguments shown. */
function denyAll(session: Session, waiting: ApprovalData[]): void {
  for (const { approval, digest = "" } of waiting) {
    void session.decide({ approvalId: approval, approved: false, digest });
  }
}
