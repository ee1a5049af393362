// Fails a build whose first load is too large: JavaScript over 250 kB, styles over 20 kB, both as gzip.
import { gzipSync } from "node:zlib";
import type { Plugin } from "vite";

const KB = 1000;
const SCRIPTS = { want: 220 * KB, most: 250 * KB };
const STYLES = { most: 20 * KB };

export function budget(): Plugin {
  return {
    name: "sidestream-budget",
    apply: "build",
    generateBundle(_, bundle) {
      const seen = new Set<string>();
      const waiting = Object.values(bundle).flatMap((item) =>
        item.type === "chunk" && item.isEntry ? [item.fileName] : [],
      );
      while (waiting.length > 0) {
        const name = waiting.pop()!;
        const item = bundle[name];
        if (seen.has(name) || item?.type !== "chunk") continue;
        seen.add(name);
        waiting.push(...item.imports);
      }
      let scripts = 0;
      for (const name of seen) {
        const item = bundle[name];
        if (item?.type === "chunk") scripts += gzipSync(item.code).length;
      }
      let styles = 0;
      for (const item of Object.values(bundle)) {
        if (item.type === "asset" && item.fileName.endsWith(".css")) styles += gzipSync(item.source).length;
      }
      const words = `first load ${(scripts / KB).toFixed(1)} kB of scripts, ${(styles / KB).toFixed(1)} kB of styles (gzip)`;
      if (scripts > SCRIPTS.most || styles > STYLES.most) this.error(`${words}: over the budget`);
      if (scripts > SCRIPTS.want) this.warn(`${words}: more than the ${SCRIPTS.want / KB} kB that are wanted`);
      else this.info(words);
    },
  };
}
