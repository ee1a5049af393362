import { type ReactNode, useLayoutEffect, useRef } from "react";
import { createPortal } from "react-dom";
import { words } from "../words";
import { Icon } from "./icons";

interface Props {
  title: string;
  onClose: () => void;
  /** `sheet` is a wide side panel, `box` a small centred one, `picture` as large as its image. */
  kind?: "sheet" | "box" | "drawer" | "picture";
  children: ReactNode;
}

/** Native modal dialog. It traps the focus, closes on Escape, and restores the focus. */
export function Dialog({ title, onClose, kind = "box", children }: Props) {
  const dialog = useRef<HTMLDialogElement>(null);
  // Clean up in a layout effect, while the element is attached. Otherwise the focus is not restored.
  useLayoutEffect(() => {
    const element = dialog.current!;
    if (!element.open) element.showModal();
    return () => element.close();
  }, []);
  return createPortal(
    <dialog
      ref={dialog}
      className={`dialog ${kind}`}
      aria-label={title}
      onCancel={(event) => {
        event.preventDefault();
        onClose();
      }}
      onMouseDown={(event) => event.target === dialog.current && onClose()}
    >
      <div className="dialog-inside">
        <header className="dialog-head">
          <h2>{title}</h2>
          <button type="button" className="button quiet icon" aria-label={words.close} onClick={onClose}>
            <Icon name="close" />
          </button>
        </header>
        <div className="dialog-body">{children}</div>
      </div>
    </dialog>,
    document.body,
  );
}
