// Writes a gzip and a Brotli version of each file beside it, which the server sends to browsers that accept them.
import { readdirSync, readFileSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { brotliCompressSync, gzipSync } from "node:zlib";
import type { Plugin } from "vite";

const TEXT = /\.(js|css|svg|txt)$/;
const ENCODINGS = {
  gz: (data: Buffer) => gzipSync(data, { level: 9 }),
  br: (data: Buffer) => brotliCompressSync(data),
};

export function compressed(): Plugin {
  let folder = "";
  return {
    name: "sidestream-compressed",
    apply: "build",
    configResolved(config) {
      folder = config.build.outDir;
    },
    closeBundle() {
      for (const entry of readdirSync(folder, { recursive: true, withFileTypes: true })) {
        if (!entry.isFile() || !TEXT.test(entry.name)) continue;
        const path = join(entry.parentPath, entry.name);
        const data = readFileSync(path);
        for (const [extension, compress] of Object.entries(ENCODINGS)) {
          const smaller = compress(data);
          if (smaller.length < data.length * 0.9) writeFileSync(`${path}.${extension}`, smaller);
        }
      }
    },
  };
}
