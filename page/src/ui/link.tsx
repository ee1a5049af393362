import type { AnchorHTMLAttributes, MouseEvent } from "react";
import { BASE } from "../base";
import { navigate, openSheet } from "../router";

interface Props extends AnchorHTMLAttributes<HTMLAnchorElement> {
  to: string;
  isSheet?: boolean;
}

/** Link within the page, with a real `href` so that it can be opened in a new tab. */
export function Link({ to, isSheet = false, onClick, ...rest }: Props) {
  const open = (event: MouseEvent<HTMLAnchorElement>) => {
    onClick?.(event);
    const isPlain = event.button === 0 && !event.metaKey && !event.ctrlKey && !event.shiftKey && !event.altKey;
    if (event.defaultPrevented || !isPlain) return;
    event.preventDefault();
    if (isSheet) openSheet(to);
    else navigate(to);
  };
  return <a href={BASE + to} onClick={open} {...rest} />;
}
