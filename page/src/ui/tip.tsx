import { type MouseEvent, type ReactNode, useId, useRef, useState } from "react";

const OPEN_MS = 150;

interface Props {
  /** What is always shown. */
  label: ReactNode;
  className?: string;
  children: ReactNode;
}

/** A short text that shows more on hover, focus or touch. */
export function Tip({ label, className = "", children }: Props) {
  const [isOpen, open] = useState(false);
  const timer = useRef<ReturnType<typeof setTimeout>>(undefined);
  const isPointed = useRef(false);
  const id = useId();
  const show = () => {
    clearTimeout(timer.current);
    timer.current = setTimeout(() => open(true), OPEN_MS);
  };
  const hide = () => {
    clearTimeout(timer.current);
    isPointed.current = false;
    open(false);
  };
  // A label that scrolls under a resting pointer was not pointed at.
  const point = (event: MouseEvent) => {
    if (isPointed.current || (event.movementX === 0 && event.movementY === 0)) return;
    isPointed.current = true;
    show();
  };
  return (
    // biome-ignore lint/a11y/noStaticElementInteractions: the button in it does the same on focus
    <span className="tip-place" onMouseMove={point} onMouseLeave={hide}>
      <button
        type="button"
        className={`tip-label ${className}`}
        aria-describedby={isOpen ? id : undefined}
        onFocus={show}
        onBlur={hide}
        onKeyDown={(event) => event.key === "Escape" && hide()}
        onClick={() => open(true)}
      >
        {label}
      </button>
      {isOpen && (
        <span id={id} role="tooltip" className="tip">
          {children}
        </span>
      )}
    </span>
  );
}
