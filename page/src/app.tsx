import { Suspense, useCallback, useEffect, useState } from "react";
import { Rail } from "./rail/rail";
import { closeSheet, match, navigate, type Place, usePlace } from "./router";
import { type Opened, panelAt } from "./routes";
import { useAbout } from "./thread/models";
import { ThreadPage } from "./thread/page";
import "./shell.css";
import { Announcer } from "./ui/announcer";
import { Boundary } from "./ui/boundary";
import { Dialog } from "./ui/dialog";
import { words } from "./words";

export function App() {
  const place = usePlace();
  const [drawer, setDrawer] = useState<"open" | "search" | null>(null);
  const openMenu = useCallback(() => setDrawer("open"), []);
  const opened = panelAt(place.path);
  const sheet = opened?.isSheet ? opened : null;
  const below = sheet ? placeBelow(place) : place;
  const { value: about, error } = useAbout();
  const isView = match("/view/:name", below.path) !== null;
  const file = about?.view;
  // A viewer has no conversations, so show none until the server has identified itself.
  const isAlone = file !== undefined || (isView && !about && !error);
  useEffect(() => {
    if (file !== undefined && (!isView || sheet)) navigate(`/view/${encodeURIComponent(file)}`, { replace: true });
  }, [file, isView, sheet]);
  // biome-ignore lint/correctness/useExhaustiveDependencies: the drawer closes whenever the URL changes
  useEffect(() => setDrawer(null), [place]);
  return (
    <div className={isAlone ? "shell alone" : "shell"}>
      <a className="skip" href="#main">
        {words.skip}
      </a>
      {!isAlone && <Rail place={below} onMenu={(isForSearch) => setDrawer(isForSearch ? "search" : "open")} />}
      {drawer && (
        <Dialog title={words.conversations} kind="drawer" onClose={() => setDrawer(null)}>
          <Rail place={below} isForSearch={drawer === "search"} />
        </Dialog>
      )}
      <main id="main" className="main" tabIndex={-1}>
        <Boundary place={below.path}>
          <Main place={below} onMenu={openMenu} />
        </Boundary>
      </main>
      {sheet && (
        <Dialog title={words.settings} kind="sheet" onClose={closeSheet}>
          <Boundary place={place.path}>
            <PanelView opened={sheet} query={place.query} />
          </Boundary>
        </Dialog>
      )}
      <Announcer />
    </div>
  );
}

/** Return the page under a sheet: the previous one, or a new conversation. */
function placeBelow(place: Place): Place {
  const address = new URL(place.below ?? "/", window.location.origin);
  return { path: address.pathname, query: address.searchParams, hash: "", below: null };
}

function Main({ place, onMenu }: { place: Place; onMenu: () => void }) {
  const opened = panelAt(place.path);
  if (opened && !opened.isSheet) return <PanelView opened={opened} query={place.query} />;
  const params = place.path === "/" ? {} : match("/c/:id", place.path);
  if (!params) return <p className="notice">{words.notFound}</p>;
  return <ThreadPage id={params.id ?? null} leaf={Number(place.query.get("leaf")) || null} onMenu={onMenu} />;
}

function PanelView({ opened, query }: { opened: Opened; query: URLSearchParams }) {
  const { Panel, params } = opened;
  return (
    <Suspense fallback={<p className="notice muted">{words.loading}</p>}>
      <Panel params={params} query={query} />
    </Suspense>
  );
}
