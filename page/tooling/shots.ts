// Pictures of the page in Chromium: three widths, two themes, the states of a conversation. Into page/shots.
//   node tooling/shots.ts [ADDRESS of a demo server] [parts of pictures' names, with commas between them]
//   node tooling/shots.ts docs      the few that the documentation shows, into docs/pictures
import { type ChildProcess, spawn } from "node:child_process";
import { mkdirSync } from "node:fs";
import { dirname, join } from "node:path";
import { fileURLToPath } from "node:url";
import { chromium, type Page } from "playwright-core";

const HERE = dirname(fileURLToPath(import.meta.url));
const IS_DOCS = process.argv[2] === "docs";
const FOLDER = IS_DOCS ? join(HERE, "..", "..", "docs", "pictures") : join(HERE, "..", "shots");
/** Scenes of the documentation → the theme of each. */
const DOCS: Record<string, string> = { search: "light", approval: "dark", timeline: "light", comparison: "light" };
const PYTHON = join(HERE, "..", "..", ".venv", "bin", "python");
const WIDTHS = [1280, 768, 390];
const THEMES = ["light", "dark"] as const;

interface Scene {
  name: string;
  /** The agent that answers; none for a page without messages. */
  agent?: string;
  prompt?: string;
  after?: (page: Page) => Promise<void>;
}

const SCENES: Scene[] = [
  { name: "empty" },
  { name: "text", agent: "text", prompt: "Tell me about the eclipse of 2027." },
  {
    name: "search",
    agent: "web_search",
    prompt: "How long is the total solar eclipse of 2027, and where is it longest?",
    after: async (page) => page.locator(".chip").first().hover(),
  },
  { name: "code", agent: "code_run", prompt: "Plot how long the day is over a year in Quito, Berlin and Tromsø." },
  { name: "image", agent: "image", prompt: "Paint a quiet fjord at dusk, in flat colours." },
  { name: "mcp", agent: "mcp", prompt: "Which train to Stockholm can I take after half past five?" },
  {
    name: "approval",
    agent: "approval",
    prompt: "Book two seats to Stockholm.",
    after: (page) => page.locator(".approval-actions .button:enabled").first().waitFor(),
  },
  {
    name: "granted",
    agent: "approval",
    prompt: "Book two seats to Stockholm.",
    after: async (page) => {
      for (const card of await page.locator(".approval").all()) {
        await card.locator(".approval-actions .button:enabled").first().waitFor();
        await card.getByRole("button", { name: "Allow in this conversation" }).click();
      }
      await page.locator(".grants li").nth(1).waitFor();
      await page.getByRole("button", { name: "Send" }).waitFor();
      const message = page.getByRole("textbox", { name: "Message", exact: true });
      await message.fill("And two for the way back.");
      await message.press("Enter");
      await page.locator(".granted").nth(1).waitFor();
      await page.getByRole("button", { name: "Send" }).waitFor();
      await page.waitForTimeout(300);
    },
  },
  {
    name: "agent",
    agent: "agent",
    prompt: "How long is the eclipse of 2027, and how do I get there?",
    after: async (page) => page.locator(".agent-card > .card-head").click(),
  },
  { name: "maths", agent: "maths", prompt: "What is the distance between two points on a sphere?" },
  { name: "table", agent: "table", prompt: "Compare the eclipses of this century." },
  { name: "files", agent: "files", prompt: "Write the report." },
  {
    name: "denial",
    agent: "approval",
    prompt: "Book two seats to Stockholm.",
    after: async (page) => {
      await page.locator(".approval-actions .button:enabled").first().waitFor();
      await page.getByRole("button", { name: "Deny (D)" }).first().click();
    },
  },
  {
    name: "facts",
    agent: "web_search",
    prompt: "How long is the total solar eclipse of 2027?",
    after: async (page) => {
      await page.locator(".facts").click();
      await page.locator(".tip").waitFor();
    },
  },
  {
    name: "pickers",
    after: async (page) => {
      await page.locator('.pick[data-pick="tools"] summary').click();
    },
  },
  {
    name: "drawer",
    agent: "approval",
    prompt: "Book two seats to Stockholm, one of them at a window if there is one.",
    after: async (page) => {
      const menu = page.getByRole("button", { name: /^(Menu|Conversations)$/ });
      if (await menu.first().isVisible()) await menu.first().click();
    },
  },
  { name: "error", agent: "error", prompt: "Please fail." },
  { name: "rtl", agent: "arabic", prompt: "كم تدوم أطول مدة للكسوف؟" },
  {
    name: "sources",
    agent: "web_search",
    prompt: "How long is the total solar eclipse of 2027?",
    after: async (page) => page.locator(".chip").first().click(),
  },
  { name: "continue", agent: "price", prompt: "What does a lamp cost?", after: continueFrom },
  {
    name: "forked",
    agent: "price",
    prompt: "What does a lamp cost?",
    after: async (page) => {
      await fork(page);
      await page.locator(".tl-row.tool").click();
    },
  },
  {
    name: "comparison",
    agent: "price",
    prompt: "What does a lamp cost?",
    after: async (page) => {
      await fork(page);
      await page.getByRole("link", { name: "Compare with the original" }).click();
      await page.locator(".tl-entry").nth(3).waitFor();
    },
  },
  {
    name: "timeline",
    agent: "web_search",
    prompt: "How long is the total solar eclipse of 2027?",
    after: async (page) => {
      await page.getByRole("link", { name: "Timeline" }).last().click();
      await page.locator(".tl-row").nth(5).click();
    },
  },
  { name: "models", after: (page) => openSettings(page, "models") },
  { name: "servers", after: (page) => openSettings(page, "mcp") },
  {
    name: "indexes",
    after: async (page) => {
      await openSettings(page, "indexes");
      await page.getByRole("button", { name: "Add folder" }).click();
      await page.getByLabel("Try a query").fill("how long is the eclipse");
      await page.getByRole("button", { name: "Search", exact: true }).click();
      await page.locator(".st-passages").waitFor();
    },
  },
  { name: "quotes", agent: "quotes", prompt: "What do my files say of the eclipse?" },
  { name: "keys", after: (page) => openSettings(page, "keys") },
  { name: "look", after: (page) => openSettings(page, "look") },
];

/** Open the form that continues a run from its tool's result. */
async function continueFrom(page: Page): Promise<void> {
  await page.getByRole("link", { name: "Timeline" }).last().click();
  await page.locator(".tl-row.tool").click();
  await page.getByRole("button", { name: "Continue from here" }).click();
  await page.getByRole("textbox", { name: "Result" }).fill("10 euros");
}

async function fork(page: Page): Promise<void> {
  await continueFrom(page);
  await page.getByRole("button", { name: "Continue", exact: true }).click();
  await page.locator(".tl-origin").waitFor();
  await page.waitForTimeout(500);
}

async function openSettings(page: Page, panel: string): Promise<void> {
  await page.goto(`${base}/settings/${panel}`);
  await page.locator(".st-panel").waitFor();
  await page.waitForTimeout(1000);
}

async function demoServer(): Promise<{ address: string; server: ChildProcess }> {
  const server = spawn(PYTHON, [join(HERE, "demo_server.py"), "0"], { stdio: ["ignore", "pipe", "inherit"] });
  const address = await new Promise<string>((resolve, reject) => {
    server.stdout!.once("data", (data) => resolve(String(data).trim()));
    server.once("exit", () => reject(new Error("the demo server did not start")));
  });
  return { address, server };
}

async function ask(page: Page, { agent, prompt }: Scene): Promise<void> {
  await page.locator('.pick[data-pick="model"] summary').click();
  await page.locator(`input[name="pick-model"][value="${agent}"]`).click();
  const message = page.getByRole("textbox", { name: "Message", exact: true });
  await message.fill(prompt!);
  await message.press("Enter");
  await page.waitForURL(/\/c\//);
  await page.getByRole("button", { name: "Send" }).waitFor({ timeout: 60_000 });
  await page.waitForTimeout(300);
}

const [address, filter] = [process.argv.find((one) => one.startsWith("http")), process.argv[2] ?? ""];
const started = address ? null : await demoServer();
const [base, token] = (address ?? started!.address).split(/\/?#/) as [string, string?];
const wanted = (process.argv[3] ?? (IS_DOCS || filter.startsWith("http") ? "" : filter)).toLowerCase();
process.once("exit", () => started?.server.kill());
mkdirSync(FOLDER, { recursive: true });
const browser = await chromium.launch({
  executablePath: process.env.CHROMIUM ?? "/usr/bin/chromium",
  args: ["--no-sandbox"],
});
let problems = 0;
for (const width of WIDTHS) {
  for (const theme of THEMES) {
    for (const scene of SCENES) {
      const name = `${scene.name}-${width}-${theme}`;
      if (!wanted.split(",").some((part) => name.includes(part))) continue;
      if (IS_DOCS && (width !== 1280 || DOCS[scene.name] !== theme)) continue;
      const context = await browser.newContext({
        viewport: IS_DOCS ? { width: 1200, height: 700 } : { width, height: width === 390 ? 844 : 900 },
        reducedMotion: "reduce",
        colorScheme: theme,
        hasTouch: width === 390,
      });
      const page = await context.newPage();
      page.on("console", (message) => {
        if (message.type() !== "error" && message.type() !== "warning") return;
        problems += 1;
        console.error(`${name}: ${message.text()}`);
      });
      page.on("request", (request) => {
        if (request.url().startsWith(base) || request.url().startsWith("blob:")) return;
        problems += 1;
        console.error(`${name}: a request to ${request.url()}`);
      });
      await page.goto(token ? `${base}/#${token}` : base);
      await page.waitForSelector(".composer");
      if (scene.agent) await ask(page, scene).catch((error: Error) => console.error(`${name}: ${error.message}`));
      else await page.waitForTimeout(500);
      await scene.after?.(page).catch((error: Error) => console.error(`${name}: ${error.message}`));
      await page.waitForTimeout(250);
      await page.screenshot({ path: join(FOLDER, IS_DOCS ? `${scene.name}.png` : `${name}.png`) });
      await context.close();
    }
  }
}
await browser.close();
process.exit(problems > 0 ? 1 : 0);
