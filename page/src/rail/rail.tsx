import { type FormEvent, type RefObject, useEffect, useId, useRef, useState } from "react";
import { api, type Conversation } from "../api";
import { APP, HAS_BRAND, ICON } from "../base";
import { forgetSession, sessionOf } from "../chat/chats";
import { useCommand } from "../commands";
import { setLook, useLook } from "../look";
import { match, navigate, type Place } from "../router";
import { useAbout, usePanels } from "../thread/models";
import { Dialog } from "../ui/dialog";
import { Icon } from "../ui/icons";
import { Link } from "../ui/link";
import { words } from "../words";
import { byAge, changeConversation, dropConversation, useConversations } from "./conversations";
import { Highlighted } from "./highlight";

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
  const [asked, setAsked] = useState<{ what: "rename" | "delete"; row: Conversation } | null>(null);
  const close = () => setAsked(null);
  const has = usePanels();
  const open = match("/c/:id", place.path)?.id;
  return (
    <nav className="rail" aria-label={words.conversations}>
      {HAS_BRAND && <Brand />}
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
        {error && <p className="notice meta">{error.message}</p>}
        {isLoaded && conversations.length === 0 && (
          <p className="notice meta">{search ? words.nothingFound(search) : words.noConversations}</p>
        )}
        {byAge(conversations).map(([age, rows]) => (
          <section key={age} aria-label={words[age]}>
            <h2>{words[age]}</h2>
            <ul>
              {rows.map((row) => (
                <Row
                  key={row.id}
                  row={row}
                  isOpen={row.id === open}
                  search={search}
                  onAsk={(what) => setAsked({ what, row })}
                />
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
      <User />
      <div className="rail-foot">
        <ThemeButton />
        {has("settings") && (
          <Link to="/settings/models" isSheet className="button quiet">
            <Icon name="gear" /> {words.settings}
          </Link>
        )}
      </div>
      {onMenu && <Strip hasSettings={has("settings")} onMenu={() => onMenu(false)} />}
      {asked?.what === "rename" && <RenameDialog row={asked.row} onClose={close} />}
      {asked?.what === "delete" && <DeleteDialog row={asked.row} isOpen={asked.row.id === open} onClose={close} />}
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

function Brand() {
  return (
    <p className="rail-brand">
      {ICON && <img src={ICON} alt="" width="24" height="24" />}
      <span dir="auto">{APP}</span>
    </p>
  );
}

/** Who is signed in, and where to sign out. */
function User() {
  const { value: about } = useAbout();
  const user = about?.user || (about?.isOwner ? words.owner : null);
  if (!user && !about?.signOutUrl) return null;
  return (
    <div className="rail-user">
      {user && (
        <span dir="auto" title={words.signedInAs(user)}>
          <span className="hidden">{words.signedInAs("")}</span>
          {user}
        </span>
      )}
      {about?.signOutUrl && (
        <a className="button quiet" href={about.signOutUrl}>
          {words.signOut}
        </a>
      )}
    </div>
  );
}

interface RowProps {
  row: Conversation;
  isOpen: boolean;
  search: string;
  onAsk: (what: "rename" | "delete") => void;
}

function Row({ row, isOpen, search, onAsk }: RowProps) {
  const title = row.title || words.untitled;
  const status = row.status ? STATUS[row.status] : undefined;
  return (
    <li className="rail-row">
      <Link to={`/c/${encodeURIComponent(row.id)}`} aria-current={isOpen ? "page" : undefined} title={title}>
        <span className="rail-title" dir="auto">
          <Highlighted text={title} search={search} />
        </span>
        {status && <span className={`status ${status.name}`}>{status.words}</span>}
        {search && row.snippet && row.snippet !== title && (
          <span className="rail-snippet meta" dir="auto">
            <Highlighted text={row.snippet} search={search} />
          </span>
        )}
      </Link>
      <RowMenu row={row} title={title} onAsk={onAsk} />
    </li>
  );
}

/** Menu of a conversation. It is in the top layer, because the list would clip it. */
function RowMenu({ row, title, onAsk }: { row: Conversation; title: string; onAsk: RowProps["onAsk"] }) {
  const id = useId();
  const button = useRef<HTMLButtonElement>(null);
  const menu = useRef<HTMLDivElement>(null);
  const place = () => {
    const { right, bottom, top } = button.current!.getBoundingClientRect();
    const { style, offsetWidth, offsetHeight } = menu.current!;
    style.left = `${Math.max(8, right - offsetWidth)}px`;
    style.top = `${bottom + offsetHeight > window.innerHeight ? Math.max(8, top - offsetHeight) : bottom}px`;
  };
  const choose = (act: () => void) => () => {
    menu.current!.hidePopover();
    act();
  };
  const pin = () => void changeConversation(row.id, { pinned: !row.pinned }).catch(() => undefined);
  return (
    <>
      <button
        ref={button}
        type="button"
        className="button quiet icon row-options"
        aria-label={words.options(title)}
        popoverTarget={id}
      >
        <Icon name="more" />
      </button>
      {/* `toggle` comes a frame late, and the menu would jump. */}
      <div ref={menu} id={id} popover="auto" className="row-menu" onBeforeToggle={() => requestAnimationFrame(place)}>
        <button type="button" className="button quiet" onClick={choose(() => onAsk("rename"))}>
          <Icon name="edit" /> {words.rename}
        </button>
        <button type="button" className="button quiet" onClick={choose(pin)}>
          <Icon name="pin" /> {row.pinned ? words.unpin : words.pin}
        </button>
        <button type="button" className="button quiet" onClick={choose(() => onAsk("delete"))}>
          <Icon name="trash" /> {words.delete}
        </button>
      </div>
    </>
  );
}

function RenameDialog({ row, onClose }: { row: Conversation; onClose: () => void }) {
  const [title, setTitle] = useState(row.title ?? "");
  const [error, setError] = useState<string | null>(null);
  const id = useId();
  const save = async (event: FormEvent) => {
    event.preventDefault();
    try {
      sessionOf(row.id).set({ title: await changeConversation(row.id, { title }) });
      onClose();
    } catch (failure) {
      setError((failure as Error).message);
    }
  };
  return (
    <Dialog title={words.renameConversation} onClose={onClose}>
      <form className="rename" onSubmit={save}>
        <input
          className="rail-search"
          aria-label={words.renameConversation}
          aria-describedby={id}
          value={title}
          maxLength={80}
          dir="auto"
          onChange={(event) => setTitle(event.target.value)}
        />
        <p id={id} className="meta">
          {words.renameHint}
        </p>
        {error && <p role="alert">{error}</p>}
        <div className="dialog-actions">
          <button type="button" className="button" onClick={onClose}>
            {words.cancel}
          </button>
          <button type="submit" className="button primary">
            {words.save}
          </button>
        </div>
      </form>
    </Dialog>
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

function Strip({ hasSettings, onMenu }: { hasSettings: boolean; onMenu: () => void }) {
  return (
    <div className="rail-icons">
      {ICON && <img src={ICON} alt={APP} width="24" height="24" />}
      <Link to="/" className="button quiet icon" aria-label={words.newConversation}>
        <Icon name="plus" />
      </Link>
      <button type="button" className="button quiet icon" aria-label={words.conversations} onClick={onMenu}>
        <Icon name="menu" />
      </button>
      {hasSettings && (
        <Link to="/settings/models" isSheet className="button quiet icon end" aria-label={words.settings}>
          <Icon name="gear" />
        </Link>
      )}
    </div>
  );
}
