// Import this first. Otherwise zod probes whether it may compile code, and the browser reports a violation of
// the page's content security policy.
import { config } from "zod/v4/core";

config({ jitless: true });
