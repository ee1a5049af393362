import { describe, expect, it } from "vitest";
import type { Entry, McpServer } from "./calls";
import { changesOf, EMPTY, formOf, joined, split } from "./mcp_changes";

const server = (kind: McpServer["kind"], entry: Entry): McpServer => ({
  label: "docs",
  kind,
  enabled: true,
  entry,
  problem: null,
  changes: [],
  signIn: { state: "none", issuer: null, expires: null, error: null },
});
const REMOTE = server("url", {
  url: "https://docs.test/?[redacted]",
  // biome-ignore lint/suspicious/noTemplateCurlyInString: the configuration file expands ${NAME} itself
  headers: { "X-Key": null, "X-Env": "${KEY}" },
  allowed_tools: ["look"],
  require_approval: "always",
  gallery: true,
});

describe("changes sent from a form", () => {
  it("are empty without edits", () => {
    for (const each of [REMOTE, server("command", { command: "uvx", args: ["a b", "c"], env: { A: null } })]) {
      expect(changesOf(formOf(each), each)).toEqual({});
    }
  });

  it("include the edited field, but no untouched secret", () => {
    const form = formOf(REMOTE);
    const headers = [{ name: "X-Key", value: "new" }, ...form.headers.slice(1), { name: "X-More", value: "1" }];
    expect(changesOf({ ...form, headers }, REMOTE)).toEqual({ headers: { "X-Key": "new", "X-More": "1" } });
    expect(changesOf({ ...form, headers: [] }, REMOTE)).toEqual({ headers: { "X-Key": null, "X-Env": null } });
    expect(changesOf({ ...form, allowed: "" }, REMOTE)).toEqual({ allowed_tools: null });
    expect(changesOf({ ...form, approval: "never" }, REMOTE)).toEqual({ require_approval: "never" });
    expect(changesOf({ ...form, approval: "default" }, REMOTE)).toEqual({ require_approval: null });
  });

  it("include every field of a new server, named for its kind", () => {
    const form = {
      ...EMPTY,
      label: "time",
      command: 'uvx "my server" --x',
      approval: "always" as const,
      allowed: "a, b,",
    };
    expect(changesOf(form, null)).toEqual({
      command: "uvx",
      args: ["my server", "--x"],
      approval: "ask",
      allowed_tools: ["a", "b"],
    });
    const remote = { ...EMPTY, kind: "provider" as const, url: " https://a.test/mcp ", approval: "never" as const };
    expect(changesOf(remote, null)).toEqual({
      url: "https://a.test/mcp",
      execution: "provider",
      require_approval: "never",
    });
  });

  it("remove the fields of the other kind", () => {
    const form = { ...formOf(REMOTE), kind: "command" as const, command: "uvx docs" };
    expect(changesOf(form, REMOTE)).toEqual({
      command: "uvx",
      args: ["docs"],
      url: null,
      headers: null,
      require_approval: null,
      approval: "ask",
    });
    expect(changesOf({ ...formOf(REMOTE), kind: "provider" }, REMOTE).execution).toBe("provider");
  });

  it("keep a policy that the form cannot show", () => {
    const custom = server("url", { url: "https://a.test", require_approval: { never: { tool_names: ["look"] } } });
    const form = formOf(custom);
    expect(form.approval).toBe("custom");
    expect(changesOf({ ...form, allowed: "look" }, custom)).toEqual({ allowed_tools: ["look"] });
  });
});

describe("command line", () => {
  it.each([[["uvx"]], [["a", "b c", 'd"e', ""]], [["--x='1 2'", `both "kinds" of 'quotes'`]]])(
    "is read back as it was written: %j",
    (words) => {
      expect(split(joined(words))).toEqual(words);
    },
  );

  it("keeps quoted spaces together", () => {
    expect(split("  a 'b c'  \"d e\"f ")).toEqual(["a", "b c", "d ef"]);
    expect(split("")).toEqual([]);
  });
});
