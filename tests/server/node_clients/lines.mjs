// Commands as lines of JSON on stdin, one reply for each on stdout: how a test drives a client in node.
import { createInterface } from "node:readline";
import { createRequire } from "node:module";
import { pathToFileURL } from "node:url";

/** Imports a package of the `node_modules` in this folder. */
export const packageIn = (folder) => {
  const require = createRequire(pathToFileURL(`${folder}/package.json`));
  return (name) => import(pathToFileURL(require.resolve(name)));
};

/** Answers each line `{n, op, ...}` with `{n, value}` or `{n, error}`. Commands may overlap. */
export function serve(commands) {
  const say = (reply) => process.stdout.write(`${JSON.stringify(reply)}\n`);
  createInterface({ input: process.stdin }).on("line", async (line) => {
    const { n, op, ...given } = JSON.parse(line);
    try {
      say({ n, value: (await commands[op](given)) ?? null });
    } catch (error) {
      say({ n, error: { name: error?.name ?? "", message: String(error?.message ?? error), status: error?.statusCode ?? error?.status ?? null } });
    }
  });
  process.on("unhandledRejection", (error) => process.stderr.write(`${error?.stack ?? error}\n`));
  say({ ready: true });
}
