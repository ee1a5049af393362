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
  /** The calls that wait for a decision. */
  waiting: ApprovalData[];
  onReview: () => void;
  /** The composer. */
  children: ReactNode;
}

/** What stands between the thread and the composer, and the composer. */
export function ThreadFoot({ session, state, follower, waiting, onReview, children }: Props) {
  return (
    <div className="thread-foot">
      {/* Calls that wait have a bar of their own, and the pill would lie on their buttons. */}
      {follower.hasNew && waiting.length === 0 && (
        <button type="button" className="button pill" onClick={follower.toEnd}>
          <Icon name="down" /> {words.newBelow}
        </button>
      )}
      {state.isOffline && (
        <p className="bar" role="status">
          {words.offline}
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

/** Denies every call that waits; each decision names the arguments that were shown. */
function denyAll(session: Session, waiting: ApprovalData[]): void {
  for (const { approval, digest = "" } of waiting) {
    void session.decide({ approvalId: approval, approved: false, digest });
  }
}
