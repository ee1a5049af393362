import {
  type KeyboardEvent,
  memo,
  useContext,
  useEffect,
  useMemo,
  useRef,
  useState,
  useSyncExternalStore,
} from "react";
import type { ApprovalData, ToolData, ToolPart } from "../chat/types";
import { date, duration, moment } from "../format";
import { hostOf } from "../markdown/links";
import { Thread } from "../thread/context";
import { isSame, linesOf, Values, Visible } from "./arguments";
import { Fields, useForm, Visit } from "./form";
import { Granted } from "./grants";
import { previousInput } from "./previous";
import { approvalWords as say } from "./words";

const ARM_MS = 600;
/** Longer arguments must be scrolled to their end before the call can be allowed. */
const SHORT_LINES = 40;

interface Props {
  part: ToolPart;
  data: ApprovalData;
  name: string;
}

const never = () => () => undefined;

/** A call that needs approval, with all its arguments in full and the buttons to decide. */
export const ApprovalCard = memo(function ApprovalCard({ part, data, name }: Props) {
  const { session } = useContext(Thread);
  const decisions = useSyncExternalStore(session?.subscribe ?? never, () => session?.state.decisions);
  const id = data.approval;
  const input = data.input ?? part.input;
  const digest = data.digest ?? "";
  const form = useForm(data.form);
  // biome-ignore lint/correctness/useExhaustiveDependencies: earlier calls do not change while this one waits
  const previous = useMemo(() => previousInput(session?.chat.messages ?? [], part, data.tool ?? name), [session, id]);
  const [isArmed, arm] = useState(false);
  const [isDenying, setDenying] = useState(false);
  const [reason, setReason] = useState("");
  const [isSent, setSent] = useState(false);
  const { isSeen, end } = useSeen(linesOf(input) > SHORT_LINES);
  // biome-ignore lint/correctness/useExhaustiveDependencies: a changed card must be read again before it is decided
  useEffect(() => {
    arm(false);
    setDenying(false);
    const timer = setTimeout(() => arm(true), ARM_MS);
    return () => clearTimeout(timer);
  }, [id, digest]);
  const expires = date(data.expires);
  const isExpired = useIsPast(expires);
  const decide = (approved: boolean, remember?: "conversation") => {
    if (!session || !isArmed || isSent || (approved && (!isSeen || isExpired))) return;
    const answers = approved ? form?.read() : undefined;
    if (answers === null) return;
    setSent(true);
    void session
      .decide({
        approvalId: id,
        approved,
        digest,
        reason: approved ? undefined : reason || undefined,
        answers,
        remember,
      })
      .finally(() => setSent(false));
  };
  const startDenying = () => isArmed && !isSent && setDenying(true);
  const onKey = (event: KeyboardEvent) => {
    if (event.key === "Escape" && isDenying) {
      event.stopPropagation();
      return setDenying(false);
    }
    if (isField(event.target) || event.ctrlKey || event.metaKey || event.altKey) return;
    if (event.key === "y" || event.key === "Y") decide(true);
    else if (event.key === "d" || event.key === "D") startDenying();
    else return;
    event.preventDefault();
    event.stopPropagation();
  };
  const made = decisions?.find((one) => one.approvalId === id);
  return (
    // biome-ignore lint/a11y/noNoninteractiveTabindex: the focus is moved to it
    <section className="approval" role="alert" tabIndex={0} data-approval={id} onKeyDown={onKey}>
      <h3 dir="auto">{data.form ? say.asks(data.server ?? name) : say.ask(data.tool ?? name, data.server ?? null)}</h3>
      {data.form ? (
        <Question form={data.form} tool={data.tool ?? name} />
      ) : (
        <p className="muted" dir="auto">
          {data.remote ? say.remote(data.server ?? null) : say.local}
          {data.origin && ` ${say.origin(data.origin)}`}
        </p>
      )}
      {data.read && data.read.length > 0 && (
        <p className="muted" dir="auto">
          {say.read([...new Set(data.read.map(hostOf))])}
        </p>
      )}
      {/* biome-ignore lint/a11y/noNoninteractiveTabindex: what scrolls must be reachable by keyboard */}
      <div className="approval-values" tabIndex={0}>
        <Values value={input} previous={previous} />
        <div ref={end} className="approval-end" />
      </div>
      {form && !made && <Fields form={form} />}
      {previous !== undefined && !isSame(previous, input) && <p className="meta">{say.changed}</p>}
      {expires && (
        <p className="muted">
          {isExpired
            ? say.expired(moment(expires))
            : say.expires(moment(expires), duration(expires.getTime() - Date.now()))}
        </p>
      )}
      {made ? (
        <p className="muted">{made.approved ? say.allowedWaits : say.deniedWaits}</p>
      ) : (
        <div className="approval-actions">
          {isDenying ? (
            <Denial
              reason={reason}
              isDisabled={isSent}
              label={data.form ? say.declineNow : say.denyNow}
              onReason={setReason}
              onDeny={() => decide(false)}
              onBack={() => setDenying(false)}
            />
          ) : (
            <>
              <button type="button" className="button" disabled={!isArmed || isSent} onClick={startDenying}>
                {data.form ? say.decline : say.deny}
              </button>
              <button
                type="button"
                className="button"
                disabled={!isArmed || isSent || !isSeen || isExpired}
                title={isSeen ? undefined : say.readAll}
                onClick={() => decide(true)}
              >
                {form ? say.send : data.form ? say.visited : say.allow}
              </button>
              {data.remember && (
                <button
                  type="button"
                  className="button"
                  disabled={!isArmed || isSent || !isSeen || isExpired}
                  title={isSeen ? say.allowAllWhat(data.tool ?? name) : say.readAll}
                  onClick={() => decide(true, "conversation")}
                >
                  {say.allowAll}
                </button>
              )}
            </>
          )}
        </div>
      )}
      <details className="meta">
        <summary>{say.details}</summary>
        <p className="value">{digest}</p>
      </details>
    </section>
  );
});

interface DenialProps {
  reason: string;
  isDisabled: boolean;
  label: string;
  onReason: (reason: string) => void;
  onDeny: () => void;
  onBack: () => void;
}

/** The reason for a denial, which the model reads, and the button that denies. */
function Denial({ reason, isDisabled, label, onReason, onDeny, onBack }: DenialProps) {
  const field = useRef<HTMLInputElement>(null);
  useEffect(() => field.current?.focus(), []);
  return (
    <form
      className="denial"
      onSubmit={(event) => {
        event.preventDefault();
        onDeny();
      }}
    >
      <input
        ref={field}
        value={reason}
        placeholder={say.reason}
        aria-label={say.reason}
        dir="auto"
        onChange={(event) => onReason(event.target.value)}
      />
      <button type="submit" className="button" disabled={isDisabled}>
        {label}
      </button>
      <button type="button" className="button quiet" onClick={onBack}>
        {say.back}
      </button>
    </form>
  );
}

const isField = (target: EventTarget) =>
  target instanceof HTMLInputElement || target instanceof HTMLTextAreaElement || target instanceof HTMLSelectElement;

/** A server's request for input: a form to fill in, or a URL to visit. */
function Question({ form, tool }: { form: NonNullable<ApprovalData["form"]>; tool: string }) {
  return (
    <>
      <p className="muted">{say.claim}</p>
      <p className="form-message" dir="auto">
        <Visible text={form.message ?? ""} />
      </p>
      {form.url !== undefined && <Visit url={form.url} />}
      <p className="muted" dir="auto">
        {say.forCall(tool)}
      </p>
    </>
  );
}

const LONGEST_TIMER_MS = 2 ** 31 - 1;

/** Return whether a time has passed, and re-render when it does. */
function useIsPast(moment: Date | null): boolean {
  const at = moment?.getTime() ?? Number.POSITIVE_INFINITY;
  const [, look] = useState(0);
  useEffect(() => {
    const left = at - Date.now();
    if (left <= 0 || left > LONGEST_TIMER_MS) return;
    const timer = setTimeout(() => look((count) => count + 1), left + 1);
    return () => clearTimeout(timer);
  }, [at]);
  return Date.now() >= at;
}

/** Track whether the end of a long block has been in view. */
function useSeen(isNeeded: boolean) {
  const [isSeen, setSeen] = useState(!isNeeded);
  const end = useRef<HTMLDivElement>(null);
  useEffect(() => {
    if (!isNeeded || !end.current) return setSeen(true);
    setSeen(false);
    const watching = new IntersectionObserver(([entry]) => entry?.isIntersecting && setSeen(true));
    watching.observe(end.current);
    return () => watching.disconnect();
  }, [isNeeded]);
  return { isSeen, end };
}

interface DecidedProps {
  part: ToolPart;
  data: ToolData | null;
  /** Whether a policy decided. */
  isAutomatic: boolean;
}

/** The decision on a call, in one line. */
export function Decided({ part, data, isAutomatic }: DecidedProps) {
  if (data?.grant) return <Granted grant={data.grant} tool={data.name ?? data.tool} server={data.server ?? null} />;
  const approval = "approval" in part ? part.approval : undefined;
  if (approval?.approved === undefined) return null;
  const { approved, reason } = approval;
  const words = isAutomatic ? say.policy(approved) : approved ? say.allowed : say.denied;
  return (
    <p className="decided meta" dir="auto">
      {words}
      {!approved && reason && `: ${reason}`}
    </p>
  );
}
