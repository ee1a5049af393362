import { cleanup, render } from "@testing-library/react";
import { afterEach, expect, test } from "vitest";
import type { PageMessage, WaitingData } from "../chat/types";
import { viewOf } from "../chat/view";
import { secondsLeft, Waiting } from "./waiting";

afterEach(cleanup);

const RETRY: WaitingData = { reason: "retry", since: 100, until: 142, cause: "429", attempt: 2, attempts: 3 };

test("counts whole seconds, whatever the clock of the server says", () => {
  expect(secondsLeft(RETRY, 100)).toBe(42);
  expect(secondsLeft(RETRY, 141.2)).toBe(1);
  expect(secondsLeft(RETRY, 500)).toBe(0);
  expect(secondsLeft(RETRY, 10)).toBe(42);
  expect(secondsLeft({ reason: "queue", since: 100 }, 100)).toBeNull();
});

test("says what a run waits for, and offers to stop", () => {
  const now = Date.now() / 1000;
  const { container, rerender } = render(<Waiting data={{ ...RETRY, since: now, until: now + 42 }} />);
  expect(container.textContent).toMatch(
    /^The provider could not answer yet \(429\)trying again in 4[12] s · attempt 2 of 3/,
  );
  expect(container.querySelector("button")!.textContent).toContain("Stop");
  rerender(<Waiting data={{ ...RETRY, since: now - 43, until: now - 1 }} />);
  expect(container.textContent).toContain("trying again now");
  rerender(<Waiting data={{ reason: "queue", since: now }} />);
  expect(container.textContent).toMatch(/^Waiting for a free worker Stop/);
  rerender(<Waiting data={{ reason: "limiter", since: now, until: now + 30 }} />);
  expect(container.textContent).toMatch(/^Waiting for this server's rate limit(30|29) s left Stop/);
  rerender(<Waiting data={{ reason: "compaction", since: now }} />);
  expect(container.textContent).toMatch(/^Summarising earlier messages Stop/);
  rerender(<Waiting data={{ reason: "new", since: now, message: "Waiting for the moon." }} />);
  expect(container.textContent).toContain("Waiting for the moon.");
});

test("a wait that is over is not shown", () => {
  const message = (over: boolean) =>
    ({
      id: "m",
      role: "assistant",
      parts: [{ type: "data-waiting", id: "waiting", data: { ...RETRY, over } }],
    }) as PageMessage;
  expect(viewOf(message(false)).waiting?.cause).toBe("429");
  expect(viewOf(message(true)).waiting).toBeNull();
});
