// Pictures of a team's page, which its operator has named: four states, three widths, two themes. Into page/shots.
//   node tooling/team_shots.ts [part of a picture's name]
//   node tooling/team_shots.ts docs      the one that the documentation shows, into docs/pictures
import { spawn } from "node:child_process";
import { mkdirSync } from "node:fs";
import { dirname, join } from "node:path";
import { fileURLToPath } from "node:url";
import { type BrowserContext, chromium, type Page } from "playwright-core";

const HERE = dirname(fileURLToPath(import.meta.url));
const IS_DOCS = process.argv[2] === "docs";
const FOLDER = IS_DOCS ? join(HERE, "..", "..", "docs", "pictures") : join(HERE, "..", "shots");
const PYTHON = join(HERE, "..", "..", ".venv", "bin", "python");
const QUESTIONS = ["Do you repair bicycles?", "How do I return a parcel?", "Where is my order?"];

const server = spawn(PYTHON, [join(HERE, "team_server.py"), "0"], { stdio: ["ignore", "pipe", "inherit"] });
const base = await new Promise<string>((resolve, reject) => {
  server.stdout!.once("data", (data) => resolve(String(data).trim()));
  server.once("exit", () => reject(new Error("the team's server did not start")));
});
const browser = await chromium.launch({
  executablePath: process.env.CHROMIUM ?? "/usr/bin/chromium",
  args: ["--no-sandbox"],
});

async function ask(page: Page, text: string): Promise<void> {
  await page.goto(base);
  await page.getByLabel("Message").fill(text);
  await page.getByLabel("Message").press("Enter");
  await page.waitForURL(/\/c\//);
  await page.getByRole("button", { name: "Send" }).waitFor();
}

/** Fill the list of a user: three questions, one of them named and pinned. */
async function prepare(context: BrowserContext): Promise<void> {
  const page = await context.newPage();
  for (const question of QUESTIONS) await ask(page, question);
  const { conversations } = await (await context.request.get(`${base}/api/conversations`)).json();
  const last = conversations.at(-1).id;
  const data = { title: "My bicycle", pinned: true };
  await context.request.patch(`${base}/api/conversations/${last}`, { data });
  await page.close();
}

const SCENES: Record<string, (page: Page, isNarrow: boolean) => Promise<void>> = {
  "team-sign-in": async (page) => {
    await page.context().clearCookies();
    await page.goto(base);
    await page.getByRole("alert").waitFor();
  },
  "team-empty": async (page) => {
    await page.goto(base);
    await page.locator(".example").first().waitFor();
  },
  team: async (page, isNarrow) => {
    await page.goto(base);
    const found = await (await page.request.get(`${base}/api/conversations`)).json();
    await page.goto(`${base}/c/${found.conversations[1].id}`);
    await page.locator(".message.answer").waitFor();
    if (isNarrow)
      await page
        .getByRole("button", { name: /^(Menu|Conversations)$/ })
        .first()
        .click();
  },
  "team-search": async (page, isNarrow) => {
    await page.goto(base);
    await page.locator(".example").first().waitFor();
    if (isNarrow)
      await page
        .getByRole("button", { name: /^(Menu|Conversations)$/ })
        .first()
        .click();
    await page.getByRole("searchbox").last().fill("warehouse");
    await page.locator(".rail-snippet:visible").first().waitFor();
  },
  "team-menu": async (page, isNarrow) => {
    await page.goto(base);
    await page.locator(".example").first().waitFor();
    if (isNarrow)
      await page
        .getByRole("button", { name: /^(Menu|Conversations)$/ })
        .first()
        .click();
    await page.locator(".rail-row:visible").nth(1).hover();
    await page.getByRole("button", { name: "Options: Where is my order?" }).last().click();
  },
};

mkdirSync(FOLDER, { recursive: true });
let isPrepared = false;
for (const width of IS_DOCS ? [1200] : [1280, 768, 390]) {
  for (const theme of IS_DOCS ? (["light"] as const) : (["light", "dark"] as const)) {
    for (const [scene, open] of Object.entries(SCENES)) {
      const name = IS_DOCS ? scene : `${scene}-${width}-${theme}`;
      if (IS_DOCS ? scene !== "team" : !name.includes(process.argv[2] ?? "")) continue;
      const context = await browser.newContext({
        viewport: { width, height: IS_DOCS ? 600 : 844 },
        reducedMotion: "reduce",
        colorScheme: theme,
        hasTouch: width === 390,
      });
      await context.addCookies([{ name: "user", value: "Anna", url: base }]);
      if (!isPrepared) await prepare(context);
      isPrepared = true;
      const page = await context.newPage();
      await open(page, width < 1100);
      await page.waitForTimeout(250);
      await page.screenshot({ path: join(FOLDER, `${name}.png`) });
      await context.close();
    }
  }
}
await browser.close();
server.kill();
