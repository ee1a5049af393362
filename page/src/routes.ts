// Route table. A panel is a folder with a `panel.tsx` whose default export is a component, loaded
// when it is opened. A missing panel has no route, and controls that lead to it are hidden.
import { type ComponentType, type LazyExoticComponent, lazy } from "react";
import { match } from "./router";

export interface PanelProps {
  /** Decoded path parameters. */
  params: Record<string, string>;
  query: URLSearchParams;
}

type Panel = "timeline" | "settings";

interface Route {
  form: string;
  panel: Panel;
  /** Whether it opens over the previous page. */
  isSheet?: boolean;
}

const ROUTES: Route[] = [
  { form: "/r/:run", panel: "timeline" },
  { form: "/view/:name", panel: "timeline" },
  { form: "/settings/:panel", panel: "settings", isSheet: true },
];

const files = import.meta.glob<{ default: ComponentType<PanelProps> }>("./{timeline,settings}/panel.tsx");
const panels = new Map<string, LazyExoticComponent<ComponentType<PanelProps>>>(
  Object.entries(files).map(([path, load]) => [path.split("/")[1]!, lazy(load)]),
);

export function hasPanel(panel: Panel): boolean {
  return panels.has(panel);
}

export interface Opened {
  Panel: LazyExoticComponent<ComponentType<PanelProps>>;
  params: Record<string, string>;
  isSheet: boolean;
}

/** Return the panel at this path, if any. */
export function panelAt(path: string): Opened | null {
  for (const { form, panel, isSheet = false } of ROUTES) {
    const params = match(form, path);
    const Panel = panels.get(panel);
    if (params && Panel) return { Panel, params, isSheet };
  }
  return null;
}
