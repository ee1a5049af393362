import { words } from "../words";

interface Props {
  /** The conversation; null for a new one. */
  id: string | null;
  /** The branch of it. */
  leaf: number | null;
  onMenu: () => void;
}

export function ThreadPage({ id }: Props) {
  return <p className="notice muted">{id ?? words.newConversation}</p>;
}
