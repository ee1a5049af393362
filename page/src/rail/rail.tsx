import { type RefObject, useEffect, useRef, useState } from "react";
import { api, type Conversation } from "../api";
import { forgetSession } from "../chat/chats";
import { useCommand } from "../commands";
import { setLook, useLook } from "../look";
import { match, navigate, type Place } from "../router";
import { hasPanel } from "../routes";
import { Dialog } from "../ui/dialog";
import { Icon } from "../ui/icons";
import { Link } from "../ui/link";
import { words } from "../words";
import { byAge, dropConversation, useConversations } from "./conversations";

const STATUS: Record<string, { words: string; name: string }> = {
  running: { words: words.running, name: "running" },
  waiting: { words: words.waits, name: "waiting" },
  failed: { words: words.failed, name: "failed" },
};

interface Props {
  place: Place;
  /** Opens the drawer. Absent in the drawer itself. */
  onMenu?: (isForSearch: boolean) => void;
  /** Whether the drawer was opened to search. */
  isForSearch?: boolean;
}

/** Navigation with the conversations. In a narrow window it is a strip of icons, or a drawer. */
export function Rail({ place, onMenu, isForSearch = false }: Props) {
  const field = useRef<HTMLInputElement>(null);
  useSearchCommand(field, onMenu);
  useEffect(() => {
    // The surrounding dialog takes the focus first.
    if (isForSearch) requestAnimationFrame(() => field.current?.focus());
  }, [isForSearch]);
  const [search, setSearch] = useState("");
  const { conversations, next, more, isLoaded, error } = useConversations(search);
  const [deleting, setDeleting] = useState<Conversation | null>(null);
  const open = match("/c/:id", place.path)?.id;
  return (
    <nav className="rail" aria-label={words.conversations}>
      <div className="rail-top">
        <Link to="/" className="button rail-new">
          <Icon name="plus" /> {words.newConversation}
        </Link>
        <input
          className="rail-search"
          type="search"
          value={search}
          placeholder={words.search}
          aria-label={words.search}
          ref={field}
          dir="auto"
          onChange={(event) => setSearch(event.target.value)}
        />
      </div>
      <div className="rail-list">
        {error && <p className="notice meta">{error}</p>}
        {isLoaded && conversations.length === 0 && (
          <p className="notice meta">{search ? words.nothingFound(search) : words.noConversations}</p>
        )}
        {byAge(conversations).map(([age, rows]) => (
          <section key={age} aria-label={words[age]}>
            <h2>{words[age]}</h2>
            <ul>
              {rows.map((row) => (
                <Row key={row.id} row={row} isOpen={row.id === open} onDelete={() => setDeleting(row)} />
              ))}
            </ul>
          </section>
        ))}
        {next !== null && isLoaded && (
          <button type="button" className="button quiet" onClick={more}>
            {words.more}
          </button>
        )}
      </div>
      <div className="rail-foot">
        <ThemeButton />
        {hasPanel("settings") && (
          <Link to="/settings/models" isSheet className="button quiet">
            <Icon name="gear" /> {words.settings}
          </Link>
        )}
      </div>
      {onMenu && <Strip onMenu={() => onMenu(false)} />}
      {deleting && <DeleteDialog row={deleting} isOpen={deleting.id === open} onClose={() => setDeleting(null)} />}
    </nav>
  );
}

/** Register the search command. A narrow window opens its drawer for it. */
function useSearchCommand(field: RefObject<HTMLInputElement | null>, onMenu: Props["onMenu"]): void {
  const search = () => {
    if (field.current?.checkVisibility()) field.current.focus();
    else onMenu?.(true);
  };
  useCommand("search", onMenu ? search : null);
}

function Row({ row, isOpen, onDelete }: { row: Conversation; isOpen: boolean; onDelete: () => void }) {
  const title = row.title || words.untitled;
  const status = row.status ? STATUS[row.status] : undefined;
  return (
    <li className="rail-row">
      <Link to={`/c/${encodeURIComponent(row.id)}`} aria-current={isOpen ? "page" : undefined} title={title}>
        <span dir="auto">{title}</span>
        {status && <span className={`status ${status.name}`}>{status.words}</span>}
      </Link>
      <button
        type="button"
        className="button quiet icon delete"
        aria-label={`${words.deleteConversation}: ${title}`}
        onClick={onDelete}
      >
        <Icon name="trash" />
      </button>
    </li>
  );
}

function DeleteDialog({ row, isOpen, onClose }: { row: Conversation; isOpen: boolean; onClose: () => void }) {
  const [error, setError] = useState<string | null>(null);
  const remove = async () => {
    try {
      await api.forget(row.id);
    } catch (failure) {
      setError((failure as Error).message);
      return;
    }
    forgetSession(row.id);
    dropConversation(row.id);
    onClose();
    if (isOpen) navigate("/");
  };
  return (
    <Dialog title={words.deleteConversation} onClose={onClose}>
      <p dir="auto">{words.deleteAsk(row.title || words.untitled)}</p>
      {error && <p role="alert">{error}</p>}
      <div className="dialog-actions">
        <button type="button" className="button" onClick={onClose}>
          {words.cancel}
        </button>
        <button type="button" className="button danger" onClick={remove}>
          {words.delete}
        </button>
      </div>
    </Dialog>
  );
}

const THEMES = ["system", "light", "dark"] as const;

function ThemeButton() {
  const { theme } = useLook();
  const next = THEMES[(THEMES.indexOf(theme) + 1) % THEMES.length]!;
  return (
    <button type="button" className="button quiet" onClick={() => setLook({ theme: next })}>
      {words.theme}: {words[theme]}
    </button>
  );
}

function Strip({ onMenu }: { onMenu: () => void }) {
  return (
    <div className="rail-icons">
      <Link to="/" className="button quiet icon" aria-label={words.newConversation}>
        <Icon name="plus" />
      </Link>
      <button type="button" className="button quiet icon" aria-label={words.conversations} onClick={onMenu}>
        <Icon name="menu" />
      </button>
      {hasPanel("settings") && (
        <Link to="/settings/models" isSheet className="button quiet icon end" aria-label={words.settings}>
          <Icon name="gear" />
        </Link>
      )}
    </div>
  );
}
