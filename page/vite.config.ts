import { defineConfig } from "vitest/config";
import { budget } from "./tooling/budget.ts";
import { compressed } from "./tooling/compressed.ts";
import { licences } from "./tooling/licences.ts";

// `base` is relative, so that the server can be mounted below a path: it writes the path into index.html.
export default defineConfig({
  base: "./",
  build: {
    outDir: "../src/sidestream/server/page",
    emptyOutDir: true,
    target: "es2023",
    modulePreload: { polyfill: false },
    assetsInlineLimit: 0,
    sourcemap: false,
    reportCompressedSize: false,
    chunkSizeWarningLimit: 1000, // The budget below is what counts.
    rolldownOptions: {
      onwarn: (warning, warn) => warning.code !== "MODULE_LEVEL_DIRECTIVE" && warn(warning),
    },
  },
  plugins: [budget(), licences(), compressed()],
  server: { host: "127.0.0.1", proxy: { "/api": "http://127.0.0.1:8787", "/v1": "http://127.0.0.1:8787" } },
  test: {
    environment: "happy-dom",
    isolate: false,
    include: ["src/**/*.test.{ts,tsx}", "test/**/*.test.{ts,tsx}"],
    testTimeout: 20_000,
  },
});
