// Settings sheet with a row of panels.
import { navigate, place } from "../router";
import type { PanelProps } from "../routes";
import { usePanels } from "../thread/models";
import { Link } from "../ui/link";
import { IndexesPanel } from "./indexes";
import { KeysPanel } from "./keys";
import { LookPanel } from "./look";
import { McpPanel } from "./mcp";
import { ModelsPanel } from "./models";
import { RunsPanel } from "./runs";
import "./settings.css";
import { settingsWords as words } from "./words";

const PANELS = {
  models: ModelsPanel,
  mcp: McpPanel,
  indexes: IndexesPanel,
  keys: KeysPanel,
  runs: RunsPanel,
  look: LookPanel,
} as const;
const NAMES = Object.keys(PANELS) as (keyof typeof PANELS)[];

export default function SettingsPanel({ params }: PanelProps) {
  const has = usePanels();
  // Everyone may choose how the page looks.
  const names = NAMES.filter((each) => each === "look" || (has("settings") && has(each)));
  const name = names.find((each) => each === params.panel) ?? names[0]!;
  const Panel = PANELS[name];
  return (
    <div className="st">
      <nav className="st-nav" aria-label={words.panels}>
        {names.map((each) => (
          <Link
            key={each}
            to={`/settings/${each}`}
            aria-current={each === name ? "page" : undefined}
            onClick={(event) => {
              // Going back closes the sheet, however many panels were visited.
              event.preventDefault();
              navigate(`/settings/${each}`, { replace: true, below: place().below ?? undefined });
            }}
          >
            {words[each]}
          </Link>
        ))}
      </nav>
      <section className="st-panel" aria-label={words[name]}>
        <Panel />
      </section>
    </div>
  );
}
