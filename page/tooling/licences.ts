// Writes the licences of all packages whose code is in the bundle beside it.
import { existsSync, readdirSync, readFileSync } from "node:fs";
import { join } from "node:path";
import type { Plugin } from "vite";

const PACKAGE = /^(.*\/node_modules\/(?:@[^/]+\/)?[^/]+)\//;
const LICENCE = /^(licen[cs]e|copying|notice)/i;

export function licences(): Plugin {
  return {
    name: "sidestream-licences",
    apply: "build",
    generateBundle(_, bundle) {
      const folders = new Set<string>();
      for (const item of Object.values(bundle)) {
        if (item.type !== "chunk") continue;
        for (const id of item.moduleIds) {
          const folder = PACKAGE.exec(id.replace(/^\0/, ""))?.[1];
          if (folder && existsSync(join(folder, "package.json"))) folders.add(folder);
        }
      }
      const texts = [...folders].sort().map(licenceOf);
      this.emitFile({ type: "asset", fileName: "LICENCES.txt", source: `${texts.join("\n\n")}\n` });
    },
  };
}

function licenceOf(folder: string): string {
  const about = JSON.parse(readFileSync(join(folder, "package.json"), "utf8"));
  const files = readdirSync(folder).filter((name) => LICENCE.test(name));
  const text = files.map((name) => readFileSync(join(folder, name), "utf8").trim()).join("\n\n");
  if (!text && !about.license) throw new Error(`${about.name} has no licence`);
  const title = `${about.name} ${about.version} (${about.license ?? "see below"})`;
  return `${title}\n${"-".repeat(title.length)}\n${text || `Licensed under ${about.license}.`}`;
}
